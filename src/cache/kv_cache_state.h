// KVCache::State: the sequences, pools and rows of a cache, and the operations that its members
// share. Cache layer.
//
// A sequence has one length, one list of ids and one place in the prefix index; in each group of
// layers it has its own page table, in which pages may be missing.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cache/group_rows.h"
#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "cache/step_memory.h"
#include "quire/kv_cache.h"
#include "runtime/ceil_div.h"

namespace quire {
namespace cache {

// The pages of a sequence in a group of layers. Positions hole_begin <= p < hole_end have none (or,
// after loading a file with another page size, no rows in a page that begins before hole_end).
struct PageTable {
  std::vector<std::int32_t> pages;  // by position / page_size, reserved ones at the end; or kNoPage
  std::int64_t hole_begin = 0, hole_end = 0;

  std::int64_t hole() const noexcept { return hole_end - hole_begin; }
  // Calls visit(i) for the existing pages first <= i < end, last first, if giving them back leaves
  // a single hole. O(these pages).
  template <class Visit>
  void visit_unseen(std::int64_t first, std::int64_t end, std::int64_t page_size,
                    const Visit& visit) const {
    if (first >= end || !joins_hole(first * page_size, end * page_size)) return;
    for (std::int64_t i = end; i-- > std::max(first, hole_end / page_size);) visit(i);
    if (hole() == 0) return;
    for (std::int64_t i = std::min(end, ceil_div(hole_begin, page_size)); i-- > first;) visit(i);
  }
  // Whether a gap would merge with the existing hole.
  bool joins_hole(std::int64_t begin, std::int64_t end) const noexcept {
    return hole() == 0 || (end >= hole_begin && begin <= hole_end);
  }
  // Whether a sequence may end here: not inside a hole, nor before a hole at its beginning.
  bool may_end_at(std::int64_t position) const noexcept {
    return hole() == 0 || position >= hole_end || (hole_begin > 0 && position <= hole_begin);
  }
};

// The first ids.size() tokens have ids, the first `committed` are not drafts, and the first
// written[l] have rows in layer l. The first chains.size() pages were given to the prefix index,
// unless it already had equal ones.
struct Sequence {
  std::vector<PageTable> tables;  // of each group
  std::int64_t length = 0;
  std::int64_t committed = 0;  // attend lowers it although it is const: see State::committed_of
  std::vector<std::int64_t> ids;
  std::vector<PrefixChain> chains;
  std::vector<std::int64_t> written;  // in each layer
  std::int64_t written_in_all = 0;    // the least of them
  std::int64_t layers_behind = 0;     // layers with written < length
  std::uint64_t salt = 0;
  std::uint64_t mark = 0;        // the last call that saw it
  std::uint32_t generation = 1;  // of the current or next valid handle
  std::uint32_t next_free = 0;   // in the list of unused slots
  bool live = false;
};

// A group of layers.
struct LayerGroup {
  LayerGroup(const KVLayerGroup& of, std::int64_t page_size, PrefixIndex& index, std::size_t number)
      : sizes(of), pool(of.n_pages, index, number), rows(of, page_size, of.n_pages) {}

  KVLayerGroup sizes;
  PagePool pool;
  GroupRows rows;
  std::int64_t live_tokens = 0, copied_pages = 0;
};

// Where the rows of a layer are.
struct LayerPlace {
  std::size_t group = 0, layer = 0;
};

}  // namespace cache

struct KVCache::State {
  explicit State(const KVCacheOptions& filled_in);

  KVCacheOptions options;
  cache::PrefixIndex index;
  std::vector<cache::LayerGroup> groups;
  std::vector<cache::LayerPlace> places;   // of every layer
  std::vector<cache::Sequence> sequences;  // by slot
  std::uint64_t number;                    // of this cache, part of its handles
  std::uint32_t first_free_slot = kNoSlot;
  std::uint64_t last_mark = 0, version = 0;
  std::int64_t live_sequences = 0;
  // What attention keeps from step to step; a caller that does not get the lock does without.
  mutable std::mutex step_memory_lock;
  mutable std::unique_ptr<cache::StepMemory> step_memory;

  static constexpr std::uint32_t kNoSlot = 0xffffffff;

  std::int64_t pages_for(std::int64_t tokens) const noexcept {
    return ceil_div(tokens, options.page_size);
  }

  // --- Handles and slots (kv_cache_state.cc) ---------------------------------------------------

  // The sequence of a handle; throws Error "[where] ..." for a stale or invalid one.
  const cache::Sequence& get(const char* where, SequenceId id) const;
  cache::Sequence& get(const char* where, SequenceId id);
  // Where the rows of a layer are; throws Error "[where] ..." for a layer that does not exist.
  cache::LayerPlace place(const char* where, std::int64_t layer) const;

  // Makes sure that there is an unused slot with room for so many pages. No visible
  // change.
  cache::Sequence& prepare_slot(std::int64_t n_pages);
  // Uses that slot for a new, empty sequence. Its vectors keep their capacity.
  SequenceId use_slot(std::uint64_t salt) noexcept;
  // Gives back all pages of a sequence, and its slot.
  void free_slot(std::uint32_t slot) noexcept;

  // Starts a new sequence, in a slot with room, with this many pages found for these ids, as far as
  // the next token sees them (kv_cache.cc).
  void begin_with_prefix(cache::Sequence& sequence, std::span<const std::int64_t> prefix,
                         std::int64_t pages) noexcept;

  // --- Room for tokens (kv_append.cc) ----------------------------------------------------------

  // Rejects stale handles, sequences named twice, negative counts and wrong numbers of ids.
  void check_step(const char* where, std::span<const NewTokens> step);
  // Throws Error unless the pools have the pages that appending would take.
  void require_pages(const char* where, std::span<const NewTokens> step) const;
  // Makes room for them in page tables; after that nothing can fail.
  void prepare_tables(std::span<const NewTokens> step);
  // Takes the pages for `count` more tokens in every group; the one they begin in is then its own.
  void take_pages(cache::Sequence& sequence, std::int64_t count) noexcept;
  // Makes the page of a position one that only this sequence may write from there on.
  void own_page(cache::Sequence& sequence, std::size_t group, std::int64_t position) noexcept;
  void lengthen(cache::Sequence& sequence, const NewTokens& tokens) noexcept;

  // --- Shortening a sequence (kv_shorten.cc) ---------------------------------------------------

  // Drops pages of the tables from index `first_page` on.
  void drop_pages_from(cache::Sequence& sequence, std::int64_t first_page) noexcept;
  // Everything except the page tables, for a new length that is not longer.
  void shorten(cache::Sequence& sequence, std::int64_t length) noexcept;
  // Both, and updates the fill of the last page.
  void cut(cache::Sequence& sequence, std::int64_t length) noexcept;
  // Gives back pages first <= i < end of a table, as far as that leaves a single hole.
  void release_pages(cache::Sequence& sequence, std::size_t group, std::int64_t first,
                     std::int64_t end) noexcept;

  // --- Written rows and the prefix index (kv_write.cc) -----------------------------------------

  // Marks the last `count` tokens as written in a layer.
  void mark_written(cache::Sequence& sequence, std::size_t layer, std::int64_t count) noexcept;
  // Enters full pages with ids, written and committed, into the prefix index.
  void chain_pages(cache::Sequence& sequence) noexcept;
  // Enters one of them: returns its node, new or existing; kNoNode if no group has the page.
  std::int32_t chain_one(cache::Sequence& sequence, std::int64_t page_idx,
                         const cache::PrefixChain& before, std::uint64_t hash) noexcept;
  // Number of tokens that are not drafts.
  static std::int64_t committed_of(const cache::Sequence& sequence) noexcept;
  // Makes tokens from `position` on drafts. Thread safe, together with readers.
  void make_drafts(std::uint32_t slot, std::int64_t position) const noexcept;
};

namespace cache {

// Rejects a position that a sequence cannot end at: beyond its length or among released tokens.
void check_end(const char* where, const char* what, const Sequence& sequence,
               std::int64_t position);

// The pages of a group that queries from position `next` on do not see: first <= i < end.
struct UnseenPages {
  std::int64_t first = 0, end = 0;
};
UnseenPages unseen_pages(const KVLayerGroup& group, std::int64_t page_size,
                         std::int64_t next) noexcept;

}  // namespace cache
}  // namespace quire
