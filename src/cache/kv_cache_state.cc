// KVCache::State: the memory of a cache, the slots of its sequences, and how sequences are
// shortened. Cache layer.
#include "cache/kv_cache_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

using cache::Sequence;

KVCache::State::State(const KVCacheOptions& filled_in)
    : options(filled_in), pool(options.n_pages, options.page_size, options.page_hash) {
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    Shape shape{options.n_pages, options.kv_heads, options.page_size, options.head_dim};
    k.push_back(Tensor::empty(shape, options.dtype));
    shape[3] = options.v_head_dim;
    v.push_back(Tensor::empty(shape, options.dtype));
  }
}

const Sequence& KVCache::State::get(const char* where, SequenceId id) const {
  if (id.slot >= sequences.size()) {
    fail(ErrorKind::value, where, "the handle belongs to no sequence of this cache");
  }
  const Sequence& sequence = sequences[id.slot];
  if (!sequence.live || sequence.generation != id.generation) {
    fail(ErrorKind::value, where, "the handle is stale: its sequence was released");
  }
  return sequence;
}

Sequence& KVCache::State::get(const char* where, SequenceId id) {
  return const_cast<Sequence&>(std::as_const(*this).get(where, id));
}

Sequence& KVCache::State::prepare_slot(std::int64_t n_pages) {
  if (first_free_slot == kNoSlot) {
    sequences.emplace_back().next_free = kNoSlot;
    first_free_slot = static_cast<std::uint32_t>(sequences.size() - 1);
  }
  Sequence& sequence = sequences[first_free_slot];
  sequence.pages.reserve(n_pages);
  return sequence;
}

SequenceId KVCache::State::use_slot(std::uint64_t salt) noexcept {
  const std::uint32_t slot = first_free_slot;
  Sequence& sequence = sequences[slot];
  first_free_slot = sequence.next_free;
  sequence.begin = sequence.length = sequence.known = sequence.written = sequence.chained = 0;
  sequence.salt = salt;
  sequence.chain = {salt, 0};
  sequence.live = true;
  ++live_sequences;
  ++version;
  return {slot, sequence.generation};
}

void KVCache::State::drop_pages_from(Sequence& sequence, std::int64_t first_page) noexcept {
  while (static_cast<std::int64_t>(sequence.pages.size()) > first_page) {
    const std::int32_t page = sequence.pages.back();
    sequence.pages.pop_back();
    if (page != kNoPage) pool.drop(page);
  }
}

// Where the page before the end is gone (release_before), nothing says what comes after it: no page
// will be chained any more, which `known` = 0 brings about.
void KVCache::State::shorten(Sequence& sequence, std::int64_t length) const noexcept {
  sequence.length = length;
  sequence.known = std::min(sequence.known, length);
  sequence.written = std::min(sequence.written, length);
  const std::int64_t whole = length / options.page_size;
  if (sequence.chained <= whole) return;
  sequence.chained = whole;
  sequence.chain = {sequence.salt, 0};
  if (whole == 0) return;
  const std::int32_t last = sequence.pages[whole - 1];
  if (last == kNoPage) {
    sequence.known = 0;
  } else {
    sequence.chain = {pool[last].chain_hash, pool[last].chain_serial};
  }
}

void KVCache::State::chain_pages(Sequence& sequence) noexcept {
  const std::int64_t whole = std::min(sequence.known, sequence.written) / options.page_size;
  if (sequence.chained >= whole) return;
  if (sequence.pages[sequence.chained] == kNoPage) {
    sequence.known = 0;  // given back before it was written: what comes after it has no prefix
    return;
  }
  pool.chain(std::span(sequence.pages).subspan(sequence.chained, whole - sequence.chained),
             sequence.chain, sequence.salt);
  sequence.chained = whole;
}

void KVCache::State::copy_page(std::int32_t from, std::int32_t to, std::int64_t rows) noexcept {
  for (std::vector<Tensor>* tensors : {&k, &v}) {
    for (Tensor& tensor : *tensors) {
      const std::size_t bytes = (rows * tensor.shape()[3]) * dtype_size(options.dtype);
      for (std::int64_t head = 0; head < options.kv_heads; ++head)
        std::memcpy(cache::page_rows(tensor, to, head), cache::page_rows(tensor, from, head),
                    bytes);
    }
  }
  const auto ids = pool.ids(from).first(rows);
  std::ranges::copy(ids, pool.ids(to).begin());
  ++copied_pages;
}

namespace cache {

void check_layer(const char* where, const KVCacheOptions& options, std::int64_t layer) {
  if (layer < 0 || layer >= options.layers) {
    fail(ErrorKind::index, where, "layer must be in 0..{}; got {}", options.layers - 1, layer);
  }
}

std::byte* page_rows(Tensor& rows, std::int64_t page, std::int64_t head) noexcept {
  const Shape& shape = rows.shape();
  const std::int64_t offset = (page * shape[1] + head) * shape[2] * shape[3];
  return static_cast<std::byte*>(rows.data()) + offset * dtype_size(rows.dtype());
}

const std::byte* page_rows(const Tensor& rows, std::int64_t page, std::int64_t head) noexcept {
  return page_rows(const_cast<Tensor&>(rows), page, head);
}

}  // namespace cache
}  // namespace quire
