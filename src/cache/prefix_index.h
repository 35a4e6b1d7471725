// PrefixIndex: finds the pages that hold given tokens after a given prefix. A node is a page full
// of ids behind another node, and knows in which page each group of layers has their rows, or that
// it has none. A hash only leads to candidates; ids, and the node before, are compared, so two
// prefixes are never taken for one. Knows nothing of who holds pages. Cache layer.
#pragma once
#include <cstdint>
#include <span>

#include "cache/page.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// Mixes every id into the hash before it. Good enough to spread nodes over buckets; nothing rests
// on it.
std::uint64_t default_page_hash(std::uint64_t before, std::span<const std::int64_t> ids) noexcept;

// What leads to the next node of a prefix.
struct PrefixChain {
  std::uint64_t hash = 0;    // of the pages so far; the salt if there are none
  std::uint64_t serial = 0;  // of the last of them; 0 if there are none
};

// 64 bytes, a cache line.
struct alignas(64) PrefixNode {
  // The serial is never given twice; 0: not in use. `parent` is the serial of the node before it, 0
  // for a first one.
  std::uint64_t serial = 0, parent = 0, salt = 0, hash = 0;
  std::int32_t bucket_previous = kNoNode, bucket_next = kNoNode;  // free: next only
  std::int32_t pages = 0;                                         // groups that have one
};
static_assert(sizeof(PrefixNode) == 64);

// How many nodes, and of what.
struct PrefixSizes {
  std::int64_t nodes = 0, groups = 1, page_size = 1;
};

class PrefixIndex {
 public:
  // Allocates here and never again. A node has a page at least, so there need be no more nodes than
  // pages of all groups together.
  PrefixIndex(const PrefixSizes& sizes, PageHash page_hash);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  const PrefixNode& operator[](std::int32_t node) const noexcept {
    return nodes_[static_cast<std::size_t>(node)];
  }
  std::span<const PrefixNode> nodes() const noexcept { return nodes_; }
  std::span<const std::int64_t> ids(std::int32_t node) const noexcept {
    return {ids_ + node * sizes_.page_size, static_cast<std::size_t>(sizes_.page_size)};
  }
  // The page of a group, or kNoPage.
  std::int32_t page(std::int32_t node, std::size_t group) const noexcept {
    return pages_[node * sizes_.groups + static_cast<std::int64_t>(group)];
  }

  std::uint64_t hash(std::uint64_t before, std::span<const std::int64_t> page_ids) const noexcept {
    return hash_(before, page_ids);
  }
  // The node with these ids (page_size of them) after `before`, or kNoNode. `hash` is theirs.
  std::int32_t find(const PrefixChain& before, std::uint64_t salt, std::uint64_t hash,
                    std::span<const std::int64_t> page_ids) const noexcept;
  // The same where `chain` ends; it moves on to what is found.
  std::int32_t find_next(PrefixChain& chain, std::uint64_t salt,
                         std::span<const std::int64_t> page_ids) const noexcept;
  // A new node without pages; there is none with these ids. One must be attached next.
  std::int32_t insert(const PrefixChain& before, std::uint64_t salt, std::uint64_t hash,
                      std::span<const std::int64_t> page_ids) noexcept;
  // The group has none yet.
  void attach(std::int32_t node, std::size_t group, std::int32_t page) noexcept;
  // It has one; without any the node is gone, and what comes after it cannot be reached any more.
  void detach(std::int32_t node, std::size_t group) noexcept;

  // Hints to the memory, a while before: to find or insert, first the one, then the other; to
  // detach the last page. With 100,000 pages the books do not fit into a core's caches, and their
  // order is anybody's.
  void expect_bucket(std::uint64_t hash) const noexcept;
  void expect_first(std::uint64_t hash) const noexcept;
  void expect_detach(std::int32_t node) const noexcept;

  std::span<const std::int32_t> buckets() const noexcept { return buckets_; }

 private:
  std::size_t bucket(std::uint64_t hash) const noexcept {
    return (hash ^ (hash >> 32)) & (buckets_.size() - 1);
  }
  PrefixNode& at(std::int32_t node) noexcept { return nodes_[static_cast<std::size_t>(node)]; }
  void erase(std::int32_t node) noexcept;

  PrefixSizes sizes_;
  PageHash hash_;
  std::uint64_t next_serial_ = 1;
  Tensor memory_, node_memory_;      // in large pages where they are large
  std::span<std::int32_t> buckets_;  // first node of each; a power of two of them
  std::span<PrefixNode> nodes_;
  std::int64_t* ids_;    // [nodes, page_size]
  std::int32_t* pages_;  // [nodes, groups]
  std::int32_t first_free_ = kNoNode;
  std::int32_t fresh_ = 0;  // nodes from here on were never used
};

}  // namespace quire::cache
