// PagePool: a stack of free pages and a list of cached ones, linked through the pages. Cache layer.
#include "cache/page_pool.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>

namespace quire::cache {

PagePool::PagePool(std::int64_t n_pages, PrefixIndex& index, std::size_t group)
    : memory_(Tensor::empty({n_pages, std::int64_t{sizeof(Page)}}, DType::u8)),
      pages_(static_cast<Page*>(memory_.data()), n_pages),
      index_(&index),
      group_(group),
      free_(n_pages) {
  std::uninitialized_default_construct(pages_.begin(), pages_.end());
}

void PagePool::expect_takes(std::int64_t count) const noexcept {
  constexpr std::int64_t kMost = 32;  // what they touch fits into L1
  std::int32_t page = oldest_;
  for (std::int64_t i = free_; i < std::min(count, free_ + kMost) && page != kNoPage; ++i) {
    index_->expect_detach((*this)[page].node);
    page = (*this)[page].next;
  }
}

std::int32_t PagePool::take() noexcept {
  assert(available() > 0);
  std::int32_t page = first_free_;
  if (page != kNoPage) {
    first_free_ = at(page).next;
    --free_;
  } else if (free_ > 0) {
    page = fresh_++;
    --free_;
  } else {
    page = oldest_;
    unlink(page);
    forget(page);
    ++evictions_;
    if (oldest_ != kNoPage) index_->expect_detach(at(oldest_).node);  // likely to be evicted next
  }
  Page& one = at(page);
  one.refs = 1;
  one.fill = 0;
  one.next = kNoPage;
  return page;
}

void PagePool::unlink(std::int32_t page) noexcept {
  Page& one = at(page);
  (one.previous == kNoPage ? oldest_ : at(one.previous).next) = one.next;
  (one.next == kNoPage ? newest_ : at(one.next).previous) = one.previous;
  one.previous = one.next = kNoPage;
  --cached_;
}

void PagePool::hold(std::int32_t page) noexcept {
  Page& one = at(page);
  if (one.refs == 0) {
    unlink(page);
    filled_ += one.fill;
  } else if (one.refs == 1) {
    ++shared_;
  }
  ++one.refs;
}

void PagePool::drop(std::int32_t page) noexcept {
  Page& one = at(page);
  assert(one.refs > 0);
  --one.refs;
  if (one.refs == 1) --shared_;
  if (one.refs > 0) return;
  filled_ -= one.fill;
  if (!one.is_findable()) {
    one.fill = 0;
    one.next = first_free_;
    first_free_ = page;
    ++free_;
    return;
  }
  one.previous = newest_;
  one.next = kNoPage;
  (newest_ == kNoPage ? oldest_ : at(newest_).next) = page;
  newest_ = page;
  ++cached_;
}

void PagePool::set_fill(std::int32_t page, std::int64_t fill) noexcept {
  Page& one = at(page);
  filled_ += fill - one.fill;
  one.fill = static_cast<std::int32_t>(fill);
}

void PagePool::make_findable(std::int32_t page, std::int32_t node) noexcept {
  assert(at(page).refs > 0 && !at(page).is_findable());
  at(page).node = node;
  index_->attach(node, group_, page);
}

void PagePool::forget(std::int32_t page) noexcept {
  const std::int32_t node = std::exchange(at(page).node, kNoNode);
  if (node != kNoNode) index_->detach(node, group_);
}

}  // namespace quire::cache
