// PrefixIndex: a hash table whose buckets are doubly linked lists of pages. Cache layer.
#include "cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <memory>

namespace quire::cache {
namespace {

// Mostly alone in its bucket, a page comes and goes without a look at others, each of which is a
// cache line somewhere: of 100,000 pages, that is most of the time.
constexpr std::size_t kBucketsPerPage = 4;

std::size_t bucket_count(std::int64_t n_pages) {
  return kBucketsPerPage *
         std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(n_pages, 1)));
}

// The ids of every page, and as much room for each as up to 2 kBucketsPerPage buckets take.
Tensor index_memory(std::int64_t n_pages, std::int64_t page_size) {
  constexpr std::size_t kMore = 2 * kBucketsPerPage * sizeof(std::int32_t) / sizeof(std::int64_t);
  return Tensor::empty({std::max<std::int64_t>(n_pages, 1), page_size + std::int64_t{kMore}},
                       DType::i64);
}

}  // namespace

std::uint64_t default_page_hash(std::uint64_t before, std::span<const std::int64_t> ids) noexcept {
  std::uint64_t hash = before + 0x9e3779b97f4a7c15u;
  for (const std::int64_t id : ids) {
    hash = (hash ^ static_cast<std::uint64_t>(id)) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 31;
  }
  hash *= 0x94d049bb133111ebu;
  return hash ^ (hash >> 29);
}

PrefixIndex::PrefixIndex(std::int64_t n_pages, std::int64_t page_size, PageHash page_hash)
    : page_size_(page_size),
      hash_(page_hash),
      memory_(index_memory(n_pages, page_size)),
      buckets_(static_cast<std::int32_t*>(memory_.data()), bucket_count(n_pages)),
      ids_(reinterpret_cast<std::int64_t*>(buckets_.data() + buckets_.size())) {
  std::uninitialized_fill(buckets_.begin(), buckets_.end(), kNoPage);
}

std::int32_t PrefixIndex::find(std::span<const Page> pages, const PrefixChain& before,
                               std::uint64_t salt, std::uint64_t hash,
                               std::span<const std::int64_t> page_ids) const noexcept {
  for (std::int32_t page = buckets_[bucket(hash)]; page != kNoPage;
       page = pages[page].bucket_next) {
    const Page& one = pages[page];
    if (one.chain_hash == hash && one.parent == before.serial && one.salt == salt &&
        std::ranges::equal(ids(page), page_ids)) {
      return page;
    }
  }
  return kNoPage;
}

void PrefixIndex::insert(std::span<Page> pages, std::int32_t page, const PrefixChain& before,
                         std::uint64_t salt, std::uint64_t hash) noexcept {
  std::int32_t& first = buckets_[bucket(hash)];
  Page& one = pages[page];
  one.serial = one.chain_serial = next_serial_++;
  one.parent = before.serial;
  one.salt = salt;
  one.chain_hash = hash;
  one.bucket_previous = kNoPage;
  one.bucket_next = first;
  if (first != kNoPage) pages[first].bucket_previous = page;
  first = page;
}

void PrefixIndex::erase(std::span<Page> pages, std::int32_t page) noexcept {
  Page& one = pages[page];
  if (one.bucket_next != kNoPage) pages[one.bucket_next].bucket_previous = one.bucket_previous;
  if (one.bucket_previous != kNoPage)
    pages[one.bucket_previous].bucket_next = one.bucket_next;
  else
    buckets_[bucket(one.chain_hash)] = one.bucket_next;
  one.bucket_previous = one.bucket_next = kNoPage;
  one.serial = one.parent = one.salt = 0;
}

void PrefixIndex::expect_bucket(std::uint64_t hash) const noexcept {
  __builtin_prefetch(&buckets_[bucket(hash)], 1);
}

void PrefixIndex::expect_first(std::span<const Page> pages, std::uint64_t hash) const noexcept {
  const std::int32_t first = buckets_[bucket(hash)];
  if (first != kNoPage) __builtin_prefetch(&pages[first], 1);
}

void PrefixIndex::expect_erase(std::span<const Page> pages, std::int32_t page) const noexcept {
  const Page& one = pages[page];
  expect_bucket(one.chain_hash);
  for (const std::int32_t other : {one.bucket_previous, one.bucket_next, one.next})
    if (other != kNoPage) __builtin_prefetch(&pages[other], 1);
  // Whoever takes the page writes ids of its own.
  constexpr std::int64_t kLine = 8;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(page_size_, 8 * kLine); i += kLine)
    __builtin_prefetch(ids_ + page * page_size_ + i, 1);
}

}  // namespace quire::cache
