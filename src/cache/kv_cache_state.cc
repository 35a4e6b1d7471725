// KVCache::State: memory of a cache, handles and slots of sequences. Cache layer.
#include "cache/kv_cache_state.h"

#include <atomic>
#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

using cache::PageTable;
using cache::Sequence;

namespace {

// Identifies the cache in handles. Never reused within a process.
std::uint64_t next_cache_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

cache::PrefixSizes index_sizes(const KVCacheOptions& options) {
  return {.nodes = options.n_pages,
          .groups = std::ssize(options.groups),
          .page_size = options.page_size};
}

}  // namespace

KVCache::State::State(const KVCacheOptions& filled_in)
    : options(filled_in),
      index(index_sizes(options), options.page_hash),
      places(options.layers),
      number(next_cache_number()) {
  groups.reserve(options.groups.size());
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const KVLayerGroup& group = options.groups[g];
    groups.emplace_back(group, options.page_size, index, g);
    for (std::size_t i = 0; i < group.layers.size(); ++i) places[group.layers[i]] = {g, i};
  }
}

const Sequence& KVCache::State::get(const char* where, SequenceId id) const {
  if (id.cache != number || id.slot >= sequences.size()) {
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

cache::LayerPlace KVCache::State::place(const char* where, std::int64_t layer) const {
  if (layer < 0 || layer >= options.layers) {
    fail(ErrorKind::index, where, "layer must be in 0..{}; got {}", options.layers - 1, layer);
  }
  return places[layer];
}

Sequence& KVCache::State::prepare_slot(std::int64_t n_pages) {
  if (first_free_slot == kNoSlot) {
    Sequence made;
    made.tables.resize(groups.size());
    made.written.resize(places.size());
    made.next_free = kNoSlot;
    sequences.push_back(std::move(made));
    first_free_slot = static_cast<std::uint32_t>(sequences.size() - 1);
  }
  Sequence& sequence = sequences[first_free_slot];
  const std::size_t pages = n_pages;
  // The first table is reserved last: if it has room, so have the others (prepare_tables).
  sequence.ids.reserve(pages * options.page_size);
  sequence.chains.reserve(pages);
  for (std::size_t g = groups.size(); g-- > 0;) sequence.tables[g].pages.reserve(pages);
  return sequence;
}

SequenceId KVCache::State::use_slot(std::uint64_t salt) noexcept {
  const std::uint32_t slot = first_free_slot;
  Sequence& sequence = sequences[slot];
  first_free_slot = sequence.next_free;
  sequence.length = sequence.committed = sequence.written_in_all = sequence.layers_behind = 0;
  for (PageTable& table : sequence.tables) table.hole_begin = table.hole_end = 0;
  for (std::int64_t& written : sequence.written) written = 0;
  sequence.ids.clear();
  sequence.chains.clear();
  sequence.salt = salt;
  sequence.live = true;
  ++live_sequences;
  ++version;
  return {.cache = number, .slot = slot, .generation = sequence.generation};
}

void KVCache::State::free_slot(std::uint32_t slot) noexcept {
  Sequence& sequence = sequences[slot];
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups[g].live_tokens -= sequence.length - sequence.tables[g].hole();
  drop_pages_from(sequence, 0);
  sequence.live = false;
  ++version;
  --live_sequences;
  // A slot whose generations are used up stays unused, so that no stale handle becomes valid again.
  if (++sequence.generation == 0) return;
  sequence.next_free = first_free_slot;
  first_free_slot = slot;
}

}  // namespace quire
