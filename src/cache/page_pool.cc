// PagePool: a stack of free pages and a list of cached ones, linked through the pages. Cache layer.
#include "cache/page_pool.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>

namespace quire::cache {

PagePool::PagePool(std::int64_t n_pages, std::int64_t page_size, PageHash hash)
    : memory_(Tensor::empty({n_pages, std::int64_t{sizeof(Page)}}, DType::u8)),
      pages_(static_cast<Page*>(memory_.data()), n_pages),
      index_(n_pages, page_size, hash),
      free_(n_pages) {
  std::uninitialized_default_construct(pages_.begin(), pages_.end());
}

void PagePool::expect_takes(std::int64_t count) const noexcept {
  constexpr std::int64_t kMost = 32;  // what they touch fits into L1
  std::int32_t page = oldest_;
  for (std::int64_t i = free_; i < std::min(count, free_ + kMost) && page != kNoPage; ++i) {
    index_.expect_erase(pages_, page);
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
    index_.erase(pages_, page);
    ++evictions_;
    if (oldest_ != kNoPage) index_.expect_erase(pages_, oldest_);  // likely the next
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
  if (one.serial == 0) {
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

std::int32_t PagePool::find_next(PrefixChain& chain, std::uint64_t salt,
                                 std::span<const std::int64_t> page_ids) const noexcept {
  const std::uint64_t hash = index_.hash(chain.hash, page_ids);
  const std::int32_t page = index_.find(pages_, chain, salt, hash, page_ids);
  if (page != kNoPage) chain = {hash, (*this)[page].serial};
  return page;
}

void PagePool::chain(std::span<const std::int32_t> pages, PrefixChain& chain,
                     std::uint64_t salt) noexcept {
  std::array<std::uint64_t, 16> hashes;
  for (std::size_t begin = 0; begin < pages.size(); begin += hashes.size()) {
    const auto some = pages.subspan(begin, std::min(hashes.size(), pages.size() - begin));
    std::uint64_t hash = chain.hash;
    for (std::size_t i = 0; i < some.size(); ++i) {
      hashes[i] = hash = index_.hash(hash, index_.ids(some[i]));
      index_.expect_bucket(hash);
    }
    for (std::size_t i = 0; i < some.size(); ++i) index_.expect_first(pages_, hashes[i]);
    for (std::size_t i = 0; i < some.size(); ++i) chain_one(some[i], hashes[i], chain, salt);
  }
}

void PagePool::chain_one(std::int32_t page, std::uint64_t hash, PrefixChain& chain,
                         std::uint64_t salt) noexcept {
  const std::int32_t found = index_.find(pages_, chain, salt, hash, index_.ids(page));
  Page& one = at(page);
  if (found == kNoPage && one.serial == 0) {
    index_.insert(pages_, page, chain, salt, hash);
  } else if (found != kNoPage && one.serial == 0) {
    one.chain_hash = hash;
    one.chain_serial = (*this)[found].serial;
  }
  chain = {hash, one.chain_serial};
}

void PagePool::forget(std::int32_t page) noexcept {
  if (at(page).serial != 0) index_.erase(pages_, page);
}

}  // namespace quire::cache
