// PagePool: which pages of a group of layers are free, held (by how many) or cached for their
// prefix, and which cached page is evicted next. Every operation is O(1) and none allocates. Does
// not know sequences or rows. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/page.h"
#include "cache/prefix_index.h"
#include "quire/tensor.h"

namespace quire::cache {

class PagePool {
 public:
  // `group`: its number in the index, which must outlive the pool.
  PagePool(std::int64_t n_pages, PrefixIndex& index, std::size_t group);

  const Page& operator[](std::int32_t page) const noexcept { return pages_[page]; }
  std::span<const Page> pages() const noexcept { return pages_; }

  std::int64_t free() const noexcept { return free_; }
  std::int64_t cached() const noexcept { return cached_; }
  std::int64_t available() const noexcept { return free_ + cached_; }
  std::int64_t shared() const noexcept { return shared_; }
  std::int64_t filled() const noexcept { return filled_; }  // filled slots of held pages
  std::int64_t evictions() const noexcept { return evictions_; }
  std::int32_t oldest_cached() const noexcept { return oldest_; }

  // A hint that this many pages will be taken next.
  void expect_takes(std::int64_t count) const noexcept;
  // A free page, or the least recently used cached one, for one holder. Requires available() > 0.
  std::int32_t take() noexcept;
  // Adds a holder to a held or cached page.
  void hold(std::int32_t page) noexcept;
  // Removes a holder. Without any, a findable page is cached as most recently used, others free.
  void drop(std::int32_t page) noexcept;
  // Sets how many slots of a held page hold tokens.
  void set_fill(std::int32_t page, std::int64_t fill) noexcept;

  // Makes a held full page the group's page of a node that has none.
  void make_findable(std::int32_t page, std::int32_t node) noexcept;
  // Makes a held page impossible to find, because its contents will change.
  void forget(std::int32_t page) noexcept;

 private:
  Page& at(std::int32_t page) noexcept { return pages_[page]; }
  void unlink(std::int32_t page) noexcept;

  Tensor memory_;  // in large pages if it is large
  std::span<Page> pages_;
  PrefixIndex* index_;
  std::size_t group_;
  std::int32_t first_free_ = kNoPage;  // freed pages, last freed first: likely in CPU caches
  std::int32_t fresh_ = 0;             // pages from here on were never taken
  std::int32_t oldest_ = kNoPage, newest_ = kNoPage;  // cached ones
  std::int64_t free_, cached_ = 0, shared_ = 0, filled_ = 0, evictions_ = 0;
};

}  // namespace quire::cache
