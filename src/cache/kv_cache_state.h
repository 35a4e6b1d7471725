// KVCache::State: the sequences, the pool and the rows of a cache, and the steps that its members
// share. Cache layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"
#include "runtime/ceil_div.h"

namespace quire {
namespace cache {

// Positions begin <= p < length have rows. Of these, the first `known` have ids, and the first
// `written` rows in all layers. The first `chained` pages have a chain in their Page; `chain` is
// that of the last of them.
struct Sequence {
  std::vector<std::int32_t> pages;  // by position / page_size, then reserved ones; kNoPage
  std::int64_t begin = 0, length = 0, known = 0, written = 0, chained = 0;
  PrefixChain chain;
  std::uint64_t salt = 0;
  std::uint64_t mark = 0;        // of the last call that saw it
  std::uint32_t generation = 1;  // of the handle that is valid now, or will be
  std::uint32_t next_free = 0;   // among slots without a sequence
  bool live = false;
};

}  // namespace cache

struct KVCache::State {
  explicit State(const KVCacheOptions& filled_in);

  KVCacheOptions options;
  std::vector<Tensor> k, v;  // of each layer [n_pages, kv_heads, page_size, dim]
  cache::PagePool pool;
  std::vector<cache::Sequence> sequences;  // by slot
  std::uint32_t first_free_slot = kNoSlot;
  std::uint64_t last_mark = 0, version = 0;
  std::int64_t live_sequences = 0, live_tokens = 0, copied_pages = 0;

  static constexpr std::uint32_t kNoSlot = 0xffffffff;

  std::int64_t pages_for(std::int64_t tokens) const noexcept {
    return ceil_div(tokens, options.page_size);
  }

  // The sequence of a handle; throws Error "[where] ..." when it is stale or of no sequence.
  const cache::Sequence& get(const char* where, SequenceId id) const;
  cache::Sequence& get(const char* where, SequenceId id);

  // Makes sure that there is a slot to use, with room for so many pages. Changes nothing that can
  // be seen.
  cache::Sequence& prepare_slot(std::int64_t n_pages);
  // Takes that slot for a new sequence without tokens. Its `pages` keep their capacity.
  SequenceId use_slot(std::uint64_t salt) noexcept;

  // Refuses handles that are stale, sequences named twice, negative counts, numbers of ids.
  void check_step(const char* where, std::span<const NewTokens> step);
  // Pages that appending would take from the pool; of sequences named once, with valid handles.
  std::int64_t pages_needed(const char* where, std::span<const NewTokens> step) const;
  // Throws Error unless the pool has them.
  void require_pages(const char* where, std::span<const NewTokens> step) const;
  // Makes room for them in page tables; then there is nothing left that can fail.
  void prepare_tables(std::span<const NewTokens> step);
  // Then: the pages for `count` more tokens, the one they begin in its own.
  void take_pages(cache::Sequence& sequence, std::int64_t count) noexcept;
  // The page of a position becomes one that this sequence alone may write from there on.
  void own_page(cache::Sequence& sequence, std::int64_t position) noexcept;
  void lengthen(cache::Sequence& sequence, const NewTokens& tokens) noexcept;

  // Drops pages of the table from index `first_page` on.
  void drop_pages_from(cache::Sequence& sequence, std::int64_t first_page) noexcept;
  // known, written, chained and chain for a new length that is not longer; its pages are there.
  void shorten(cache::Sequence& sequence, std::int64_t length) const noexcept;
  // Rows up to `length` are written: full pages with ids can be found.
  void chain_pages(cache::Sequence& sequence) noexcept;

  // Copies the first `rows` rows of a page in all layers.
  void copy_page(std::int32_t from, std::int32_t to, std::int64_t rows) noexcept;
};

namespace cache {

// Checks that `layer` has one; throws Error "[where] ...".
void check_layer(const char* where, const KVCacheOptions& options, std::int64_t layer);

// Where the rows of a page and head begin.
std::byte* page_rows(Tensor& rows, std::int64_t page, std::int64_t head) noexcept;
const std::byte* page_rows(const Tensor& rows, std::int64_t page, std::int64_t head) noexcept;

}  // namespace cache
}  // namespace quire
