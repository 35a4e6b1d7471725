// PrefixIndex: finds the pages that hold given tokens after a given prefix. A node is a page of ids
// that follows another node, and knows which page, if any, holds their rows in each group of
// layers. Hashes only find candidates; ids and the preceding node are compared, so two prefixes are
// never confused. Does not know who holds pages. Cache layer.
#pragma once
#include <cstdint>
#include <span>

#include "cache/page.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// Mixes every id into the previous hash. Good enough to spread nodes over buckets; correctness does
// not depend on it.
std::uint64_t default_page_hash(std::uint64_t before, std::span<const std::int64_t> ids) noexcept;

// The end of a prefix, from which the next node is found.
struct PrefixChain {
  std::uint64_t hash = 0;    // of the pages so far; the salt if there are none
  std::uint64_t serial = 0;  // of the last of them; 0 if there are none
};

// 64 bytes, a cache line.
struct alignas(64) PrefixNode {
  // Serials are never reused; 0: not in use. `parent` is the serial of the preceding node, 0 for a
  // first one.
  std::uint64_t serial = 0, parent = 0, salt = 0, hash = 0;
  std::int32_t bucket_previous = kNoNode, bucket_next = kNoNode;  // free nodes use only bucket_next
  std::int32_t pages = 0;                                         // groups that have a page
};
static_assert(sizeof(PrefixNode) == 64);

// Number of nodes, and their sizes.
struct PrefixSizes {
  std::int64_t nodes = 0, groups = 1, page_size = 1;
};

class PrefixIndex {
 public:
  // Allocates once, here. A node has at least one page, so there are at most as many nodes as pages
  // in all groups.
  PrefixIndex(const PrefixSizes& sizes, PageHash page_hash);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  const PrefixNode& operator[](std::int32_t node) const noexcept { return nodes_[node]; }
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
  // The node with these ids (page_size of them, with this hash) after `before`, or kNoNode.
  std::int32_t find(const PrefixChain& before, std::uint64_t salt, std::uint64_t hash,
                    std::span<const std::int64_t> page_ids) const noexcept;
  // The same after `chain`, which then advances to the node found.
  std::int32_t find_next(PrefixChain& chain, std::uint64_t salt,
                         std::span<const std::int64_t> page_ids) const noexcept;
  // A new node without pages; none with these ids may exist. A page must be attached next.
  std::int32_t insert(const PrefixChain& before, std::uint64_t salt, std::uint64_t hash,
                      std::span<const std::int64_t> page_ids) noexcept;
  // Requires that the group has no page yet.
  void attach(std::int32_t node, std::size_t group, std::int32_t page) noexcept;
  // Requires that it has one. Without any the node goes, and later ones cannot be reached any more.
  void detach(std::int32_t node, std::size_t group) noexcept;

  // Prefetch hints: before find or insert, first one and then the other; before detaching the last
  // page. With 100,000 pages the tables do not fit into a core's caches and are accessed in random
  // order.
  void expect_bucket(std::uint64_t hash) const noexcept;
  void expect_first(std::uint64_t hash) const noexcept;
  void expect_detach(std::int32_t node) const noexcept;

  std::span<const std::int32_t> buckets() const noexcept { return buckets_; }

 private:
  std::size_t bucket(std::uint64_t hash) const noexcept {
    return (hash ^ (hash >> 32)) & (buckets_.size() - 1);
  }
  PrefixNode& at(std::int32_t node) noexcept { return nodes_[node]; }
  void erase(std::int32_t node) noexcept;

  PrefixSizes sizes_;
  PageHash hash_;
  std::uint64_t next_serial_ = 1;
  Tensor memory_, node_memory_;      // in large pages if they are large
  std::span<std::int32_t> buckets_;  // first node of each; their number is a power of two
  std::span<PrefixNode> nodes_;
  std::int64_t* ids_;    // [nodes, page_size]
  std::int32_t* pages_;  // [nodes, groups]
  std::int32_t first_free_ = kNoNode;
  std::int32_t fresh_ = 0;  // nodes from here on were never used
};

}  // namespace quire::cache
