// PrefixIndex: finds the page that holds given tokens after a given prefix. A hash only leads to
// candidates; ids, and the page before, are compared, so two prefixes are never taken for one.
// Knows nothing of who holds pages. Cache layer.
#pragma once
#include <cstdint>
#include <span>

#include "cache/page.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// Mixes every id into the hash before it. Good enough to spread pages over buckets; nothing rests
// on it.
std::uint64_t default_page_hash(std::uint64_t before, std::span<const std::int64_t> ids) noexcept;

// What leads to the next page of a prefix.
struct PrefixChain {
  std::uint64_t hash = 0;    // of the pages so far; the salt if there are none
  std::uint64_t serial = 0;  // of the last of them; 0 if there are none
};

class PrefixIndex {
 public:
  // Buckets for n_pages; ids of page_size tokens for each. Allocates here and never again.
  PrefixIndex(std::int64_t n_pages, std::int64_t page_size, PageHash page_hash);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  std::span<std::int64_t> ids(std::int32_t page) noexcept {
    return {ids_ + page * page_size_, static_cast<std::size_t>(page_size_)};
  }
  std::span<const std::int64_t> ids(std::int32_t page) const noexcept {
    return {ids_ + page * page_size_, static_cast<std::size_t>(page_size_)};
  }

  std::uint64_t hash(std::uint64_t before, std::span<const std::int64_t> page_ids) const noexcept {
    return hash_(before, page_ids);
  }
  // The page with these ids (page_size of them) after `before`, or kNoPage. `hash` is theirs.
  std::int32_t find(std::span<const Page> pages, const PrefixChain& before, std::uint64_t salt,
                    std::uint64_t hash, std::span<const std::int64_t> page_ids) const noexcept;
  // Makes a page findable by the ids it has. It is not yet.
  void insert(std::span<Page> pages, std::int32_t page, const PrefixChain& before,
              std::uint64_t salt, std::uint64_t hash) noexcept;
  // It is findable; then no more. Pages after it in a prefix cannot be reached any more either.
  void erase(std::span<Page> pages, std::int32_t page) noexcept;

  // Hints to the memory, a while before: to find or insert, first the one, then the other; to
  // erase. With 100,000 pages the books do not fit into a core's caches, and their order is
  // anybody's.
  void expect_bucket(std::uint64_t hash) const noexcept;
  void expect_first(std::span<const Page> pages, std::uint64_t hash) const noexcept;
  void expect_erase(std::span<const Page> pages, std::int32_t page) const noexcept;

  std::span<const std::int32_t> buckets() const noexcept { return buckets_; }

 private:
  std::size_t bucket(std::uint64_t hash) const noexcept {
    return (hash ^ (hash >> 32)) & (buckets_.size() - 1);
  }

  std::int64_t page_size_;
  PageHash hash_;
  std::uint64_t next_serial_ = 1;
  Tensor memory_;                    // of both, so that it is in large pages where it is large
  std::span<std::int32_t> buckets_;  // first page of each; a power of two of them
  std::int64_t* ids_;                // [n_pages, page_size]
};

}  // namespace quire::cache
