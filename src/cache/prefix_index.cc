// PrefixIndex: buckets of doubly linked nodes. Cache layer.
#include "cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <memory>

namespace quire::cache {
namespace {

// With few collisions, a node is inserted and removed without touching others, each of which is a
// cache miss: with 100,000 nodes that is most of the time.
constexpr std::size_t kBucketsPerNode = 4;

std::size_t bucket_count(std::int64_t nodes) {
  return kBucketsPerNode *
         std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(nodes, 1)));
}

// For every node its ids, the pages of its groups, and room for up to 2 kBucketsPerNode buckets.
Tensor index_memory(const PrefixSizes& sizes) {
  constexpr std::int64_t kBuckets = 2 * kBucketsPerNode;
  const std::int64_t small = (sizes.groups + kBuckets + 1) / 2;  // int32, two of them in an int64
  return Tensor::empty({std::max<std::int64_t>(sizes.nodes, 1), sizes.page_size + small},
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

PrefixIndex::PrefixIndex(const PrefixSizes& sizes, PageHash page_hash)
    : sizes_(sizes),
      hash_(page_hash),
      memory_(index_memory(sizes)),
      node_memory_(Tensor::empty({sizes.nodes, std::int64_t{sizeof(PrefixNode)}}, DType::u8)),
      buckets_(static_cast<std::int32_t*>(memory_.data()), bucket_count(sizes.nodes)),
      nodes_(static_cast<PrefixNode*>(node_memory_.data()), sizes.nodes),
      ids_(reinterpret_cast<std::int64_t*>(buckets_.data() + buckets_.size())),
      pages_(reinterpret_cast<std::int32_t*>(ids_ + sizes.nodes * sizes.page_size)) {
  std::uninitialized_fill(buckets_.begin(), buckets_.end(), kNoNode);
  std::uninitialized_default_construct(nodes_.begin(), nodes_.end());
}

std::int32_t PrefixIndex::find(const PrefixChain& before, std::uint64_t salt, std::uint64_t hash,
                               std::span<const std::int64_t> page_ids) const noexcept {
  for (std::int32_t node = buckets_[bucket(hash)]; node != kNoNode;
       node = (*this)[node].bucket_next) {
    const PrefixNode& one = (*this)[node];
    if (one.hash == hash && one.parent == before.serial && one.salt == salt &&
        std::ranges::equal(ids(node), page_ids)) {
      return node;
    }
  }
  return kNoNode;
}

std::int32_t PrefixIndex::find_next(PrefixChain& chain, std::uint64_t salt,
                                    std::span<const std::int64_t> page_ids) const noexcept {
  const std::uint64_t hash = this->hash(chain.hash, page_ids);
  const std::int32_t node = find(chain, salt, hash, page_ids);
  if (node != kNoNode) chain = {hash, (*this)[node].serial};
  return node;
}

std::int32_t PrefixIndex::insert(const PrefixChain& before, std::uint64_t salt, std::uint64_t hash,
                                 std::span<const std::int64_t> page_ids) noexcept {
  std::int32_t node = first_free_;
  if (node != kNoNode) {
    first_free_ = at(node).bucket_next;
  } else {
    assert(fresh_ < std::ssize(nodes_));
    node = fresh_++;
  }
  std::int32_t& first = buckets_[bucket(hash)];
  at(node) = {.serial = next_serial_++,
              .parent = before.serial,
              .salt = salt,
              .hash = hash,
              .bucket_previous = kNoNode,
              .bucket_next = first};
  if (first != kNoNode) at(first).bucket_previous = node;
  first = node;
  std::ranges::copy(page_ids, ids_ + node * sizes_.page_size);
  std::fill_n(pages_ + node * sizes_.groups, sizes_.groups, kNoPage);
  return node;
}

void PrefixIndex::attach(std::int32_t node, std::size_t group, std::int32_t page) noexcept {
  assert(this->page(node, group) == kNoPage);
  pages_[node * sizes_.groups + static_cast<std::int64_t>(group)] = page;
  ++at(node).pages;
}

void PrefixIndex::detach(std::int32_t node, std::size_t group) noexcept {
  pages_[node * sizes_.groups + static_cast<std::int64_t>(group)] = kNoPage;
  if (--at(node).pages == 0) erase(node);
}

void PrefixIndex::erase(std::int32_t node) noexcept {
  PrefixNode& one = at(node);
  if (one.bucket_next != kNoNode) at(one.bucket_next).bucket_previous = one.bucket_previous;
  (one.bucket_previous == kNoNode ? buckets_[bucket(one.hash)]
                                  : at(one.bucket_previous).bucket_next) = one.bucket_next;
  one = {};
  one.bucket_next = first_free_;
  first_free_ = node;
}

void PrefixIndex::expect_bucket(std::uint64_t hash) const noexcept {
  __builtin_prefetch(&buckets_[bucket(hash)], 1);
}

void PrefixIndex::expect_first(std::uint64_t hash) const noexcept {
  const std::int32_t first = buckets_[bucket(hash)];
  if (first != kNoNode) __builtin_prefetch(&(*this)[first], 1);
}

void PrefixIndex::expect_detach(std::int32_t node) const noexcept {
  const PrefixNode& one = (*this)[node];
  expect_bucket(one.hash);
  for (const std::int32_t other : {one.bucket_previous, one.bucket_next})
    if (other != kNoNode) __builtin_prefetch(&(*this)[other], 1);
  // Whoever reuses the node writes its own ids.
  constexpr std::int64_t kLine = 8;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(sizes_.page_size, 8 * kLine); i += kLine)
    __builtin_prefetch(ids_ + node * sizes_.page_size + i, 1);
}

}  // namespace quire::cache
