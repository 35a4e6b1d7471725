// KVCache: writes rows of new tokens to their pages, and enters full pages into the prefix index.
// Cache layer.
#include <algorithm>
#include <array>
#include <atomic>

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using cache::LayerPlace;
using cache::PageTable;
using cache::PrefixChain;
using cache::Sequence;

namespace {

// Rows [tokens, kv_heads, dim] of one step, or with leading layers.
void check_rows(const char* where, const char* name, const ConstTensorView& rows,
                const Shape& wanted) {
  if (!is_floating(rows.dtype())) {
    fail(ErrorKind::type, where, "{} must be f32, f64, bf16 or f16; got {}", name,
         dtype_name(rows.dtype()));
  }
  if (rows.shape() != wanted) {
    fail(ErrorKind::value, where, "{} must have shape {}; got {}", name, to_string(wanted),
         to_string(rows.shape()));
  }
}

std::int64_t total_count(std::span<const NewTokens> step) {
  std::int64_t total = 0;
  for (const NewTokens& tokens : step) total += tokens.count;
  return total;
}

// Rejects tokens that do not exist, or whose pages this sequence may not write.
void check_writable(const char* where, const KVCache::State& state, std::size_t group,
                    std::size_t layer, const NewTokens& tokens) {
  const Sequence& sequence = state.sequences[tokens.sequence.slot];
  const PageTable& table = sequence.tables[group];
  const std::int64_t there = sequence.length - table.hole_end;
  if (tokens.count > there) {
    fail(ErrorKind::value, where, "the sequence must have as many tokens as count; got {} and {}",
         there, tokens.count);
  }
  const std::int64_t page_size = state.options.page_size, start = sequence.length - tokens.count;
  for (std::int64_t at = start; at < sequence.length; at += page_size - at % page_size) {
    const cache::Page& page = state.groups[group].pool[table.pages[at / page_size]];
    // Rows that were never written are the same for all who share them.
    if (page.is_findable() || (page.refs > 1 && start < sequence.written[layer])) {
      fail(ErrorKind::value, where,
           "position {} is in a page that is shared or can be found by prefix; its rows were "
           "written before",
           at);
    }
  }
}

// Rejects writing codes before their shared scales are known.
void check_scales(const char* where, const cache::GroupRows& rows, LayerPlace place) {
  for (const cache::RowStore* store : {&rows.k(place.layer), &rows.v(place.layer)}) {
    if (!store->has_scales())
      fail(ErrorKind::value, where, "{} has no scales before set_scales gives them",
           store->format().name());
  }
}

// The place of a layer, after checking that the whole step is writable there.
LayerPlace check_layer(const char* where, const KVCache::State& state, std::int64_t layer,
                       std::span<const NewTokens> step) {
  const LayerPlace place = state.place(where, layer);
  for (const NewTokens& tokens : step) check_writable(where, state, place.group, layer, tokens);
  check_scales(where, state.groups[place.group].rows, place);
  return place;
}

// The rows of a step in one layer, [tokens, kv_heads, dim]; no values if they are part of the keys.
struct LayerRows {
  const ConstTensorView& k;
  const ConstTensorView* v;
};

// `leading`: the axes before the tokens, if any.
void check_rows_of(const char* where, const KVLayerGroup& group, const Shape& leading,
                   const LayerRows& rows) {
  const auto shape = [&](std::int64_t dim) {
    Shape all = leading;
    all.push_back(group.kv_heads);
    all.push_back(dim);
    return all;
  };
  check_rows(where, "k", rows.k, shape(group.head_dim));
  if (group.v_in_k != (rows.v == nullptr)) {
    fail(ErrorKind::value, where, "{}",
         group.v_in_k ? "values are columns of keys (v_in_k); give k alone" : "v must be given");
  }
  if (rows.v != nullptr) check_rows(where, "v", *rows.v, shape(group.v_head_dim));
}

// Throws Error if rows hold numbers that cannot be coded.
void check_codes(const char* where, const cache::GroupRows& rows, LayerPlace place,
                 const LayerRows& given) {
  const auto check = [&](const char* name, const cache::RowStore& store,
                         const ConstTensorView& of) {
    // RowStore takes at most the rows of a page at a time.
    constexpr std::int64_t kSome = 1 << 20;
    for (std::int64_t first = 0; first < of.dim(0); first += kSome) {
      const std::int64_t n = std::min(kSome, of.dim(0) - first);
      const std::int64_t without = store.first_without_code({of, first, n});
      if (without == n) continue;
      fail(ErrorKind::value, where, "row {} of {} holds {}, which {} has no codes for",
           first + without, name,
           store.format().scale == ScaleAxis::kGroup
               ? "NaN, infinity or a number too large for a scale in f16"
               : "NaN or infinity",
           store.format().name());
    }
  };
  check("k", rows.k(place.layer), given.k);
  if (given.v != nullptr) check("v", rows.v(place.layer), *given.v);
}

// Whether all numbers could be coded; if not, the stored rows must not be read.
bool write_rows(KVCache::State& state, LayerPlace place, std::span<const NewTokens> step,
                const LayerRows& given) noexcept {
  const std::int64_t page_size = state.options.page_size;
  cache::GroupRows& rows = state.groups[place.group].rows;
  std::int64_t row = 0;
  bool fits = true;
  for (const NewTokens& tokens : step) {
    const Sequence& sequence = state.sequences[tokens.sequence.slot];
    for (std::int64_t at = sequence.length - tokens.count; at < sequence.length;) {
      const std::int64_t slot = at % page_size,
                         n = std::min(page_size - slot, sequence.length - at);
      const std::int32_t page = sequence.tables[place.group].pages[at / page_size];
      fits &= rows.write(place.layer, {page, slot},
                         {.k = given.k, .v = given.v, .first = row, .n = n}) == n;
      at += n;
      row += n;
    }
  }
  return fits;
}

// Whether the rows were written before: a step that fails must not touch them then.
bool writes_again(const KVCache::State& state, std::int64_t layer,
                  std::span<const NewTokens> step) {
  return std::ranges::any_of(step, [&](const NewTokens& tokens) {
    const Sequence& sequence = state.sequences[tokens.sequence.slot];
    return sequence.length - tokens.count < sequence.written[layer];
  });
}

void mark(KVCache::State& state, std::int64_t layer, std::span<const NewTokens> step) noexcept {
  for (const NewTokens& tokens : step) {
    state.mark_written(state.sequences[tokens.sequence.slot], layer, tokens.count);
  }
}

}  // namespace

void KVCache::State::mark_written(Sequence& sequence, std::size_t layer,
                                  std::int64_t count) noexcept {
  std::int64_t& written = sequence.written[layer];
  // If earlier rows are still missing, these alone do not extend the prefix.
  if (written == sequence.length || sequence.length - count > written) return;
  written = sequence.length;
  if (--sequence.layers_behind > 0) return;
  sequence.written_in_all = sequence.length;
  chain_pages(sequence);
}

// Attaches each full page to the node of its ids, in every group that has no page there: rows of
// the same ids are the same. Hashes of several pages are computed ahead, so that the memory of the
// index is fetched meanwhile.
void KVCache::State::chain_pages(Sequence& sequence) noexcept {
  const std::int64_t page_size = options.page_size;
  const std::int64_t whole =
      std::min({std::ssize(sequence.ids), sequence.written_in_all, sequence.committed}) / page_size;
  const auto ids_of = [&](std::int64_t page) {
    return std::span<const std::int64_t>(sequence.ids).subspan(page * page_size, page_size);
  };
  PrefixChain chain =
      sequence.chains.empty() ? PrefixChain{sequence.salt, 0} : sequence.chains.back();
  std::array<std::uint64_t, 16> hashes;
  for (std::int64_t begin = std::ssize(sequence.chains); begin < whole;
       begin = std::ssize(sequence.chains)) {
    const std::int64_t n = std::min(std::ssize(hashes), whole - begin);
    std::uint64_t hash = chain.hash;
    for (std::int64_t i = 0; i < n; ++i) {
      hashes[i] = hash = index.hash(hash, ids_of(begin + i));
      index.expect_bucket(hash);
    }
    for (std::int64_t i = 0; i < n; ++i) index.expect_first(hashes[i]);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t next = hashes[i];
      const std::int32_t node = chain_one(sequence, begin + i, chain, next);
      // Given back in all groups before it was written: no later page has a prefix.
      if (node == cache::kNoNode) return;
      chain = {next, index[node].serial};
      sequence.chains.push_back(chain);
    }
  }
}

std::int32_t KVCache::State::chain_one(Sequence& sequence, std::int64_t page_idx,
                                       const PrefixChain& before, std::uint64_t hash) noexcept {
  const auto ids = std::span<const std::int64_t>(sequence.ids)
                       .subspan(page_idx * options.page_size, options.page_size);
  std::int32_t node = index.find(before, sequence.salt, hash, ids);
  // A page already found under another prefix with the same ids stays there.
  for (std::size_t g = 0; g < groups.size() && node == cache::kNoNode; ++g) {
    const std::int32_t page = sequence.tables[g].pages[page_idx];
    if (page != kNoPage) node = groups[g].pool[page].node;
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PageTable& table = sequence.tables[g];
    const std::int32_t page = table.pages[page_idx];
    if (page == kNoPage || groups[g].pool[page].is_findable()) continue;
    // A page loaded from a file with another page size may be incomplete.
    if (page_idx * options.page_size < table.hole_end &&
        (page_idx + 1) * options.page_size > table.hole_begin) {
      continue;
    }
    if (node == cache::kNoNode) node = index.insert(before, sequence.salt, hash, ids);
    if (index.page(node, g) == kNoPage) groups[g].pool.make_findable(page, node);
  }
  return node;
}

std::int64_t KVCache::State::committed_of(const Sequence& sequence) noexcept {
  return std::atomic_ref(const_cast<std::int64_t&>(sequence.committed))
      .load(std::memory_order_relaxed);
}

void KVCache::State::make_drafts(std::uint32_t slot, std::int64_t position) const noexcept {
  const std::atomic_ref committed(const_cast<std::int64_t&>(sequences[slot].committed));
  std::int64_t now = committed.load(std::memory_order_relaxed);
  while (now > position && !committed.compare_exchange_weak(now, position)) {
  }
}

namespace {

void write_layer(KVCache::State& state, std::int64_t layer, std::span<const NewTokens> step,
                 const LayerRows& rows) {
  constexpr const char* kWhere = "KVCache::write";
  state.place(kWhere, layer);
  state.check_step(kWhere, step);
  const LayerPlace place = check_layer(kWhere, state, layer, step);
  const cache::LayerGroup& group = state.groups[place.group];
  check_rows_of(kWhere, group.sizes, {total_count(step)}, rows);
  if (writes_again(state, layer, step)) check_codes(kWhere, group.rows, place, rows);
  // Unwritten slots hold arbitrary values, even if this fails.
  if (!write_rows(state, place, step, rows)) check_codes(kWhere, group.rows, place, rows);
  mark(state, layer, step);
}

// Rows with leading layers.
void append_layers(KVCache& cache, KVCache::State& state, std::span<const NewTokens> step,
                   const LayerRows& rows) {
  constexpr const char* kWhere = "KVCache::append";
  const KVLayerGroup& first = state.groups[0].sizes;
  for (const cache::LayerGroup& group : state.groups) {
    const KVLayerGroup& sizes = group.sizes;
    if (sizes.kv_heads != first.kv_heads || sizes.head_dim != first.head_dim ||
        sizes.v_head_dim != first.v_head_dim || sizes.v_in_k != first.v_in_k) {
      fail(ErrorKind::value, kWhere,
           "groups of layers have other heads or dims: append, then write layer by layer");
    }
  }
  state.check_step(kWhere, step);
  state.require_pages(kWhere, step);  // after this the counts are known to be sane
  const std::int64_t layers = state.options.layers;
  check_rows_of(kWhere, first, {layers, total_count(step)}, rows);
  const auto with_layer = [&](std::int64_t layer, const auto& use) {
    const ConstTensorView k = rows.k.select(0, layer);
    if (rows.v == nullptr) return use(LayerRows{k, nullptr});
    const ConstTensorView v = rows.v->select(0, layer);
    use(LayerRows{k, &v});
  };
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const LayerPlace place = state.place(kWhere, layer);
    check_scales(kWhere, state.groups[place.group].rows, place);
    with_layer(layer, [&](const LayerRows& one) {
      check_codes(kWhere, state.groups[place.group].rows, place, one);
    });
  }
  cache.append(step);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    with_layer(layer, [&](const LayerRows& one) {
      write_rows(state, state.place(kWhere, layer), step, one);
    });
    mark(state, layer, step);
  }
}

}  // namespace

void KVCache::write(std::int64_t layer, std::span<const NewTokens> step, const ConstTensorView& k,
                    const ConstTensorView& v) {
  const FloatEnv float_env;
  write_layer(*state_, layer, step, {k, &v});
}

void KVCache::write(std::int64_t layer, std::span<const NewTokens> step, const ConstTensorView& k) {
  const FloatEnv float_env;
  write_layer(*state_, layer, step, {k, nullptr});
}

void KVCache::append(std::span<const NewTokens> step, const ConstTensorView& k,
                     const ConstTensorView& v) {
  const FloatEnv float_env;
  append_layers(*this, *state_, step, {k, &v});
}

void KVCache::append(std::span<const NewTokens> step, const ConstTensorView& k) {
  const FloatEnv float_env;
  append_layers(*this, *state_, step, {k, nullptr});
}

void KVCache::mark_written(std::int64_t layer, std::span<const NewTokens> step) {
  state_->place("KVCache::mark_written", layer);
  state_->check_step("KVCache::mark_written", step);
  check_layer("KVCache::mark_written", *state_, layer, step);
  mark(*state_, layer, step);
}

void KVCache::mark_written(std::span<const NewTokens> step) {
  state_->check_step("KVCache::mark_written", step);
  for (std::int64_t layer = 0; layer < state_->options.layers; ++layer)
    check_layer("KVCache::mark_written", *state_, layer, step);
  for (std::int64_t layer = 0; layer < state_->options.layers; ++layer) mark(*state_, layer, step);
}

void KVCache::commit(SequenceId id, std::int64_t length) {
  Sequence& sequence = state_->get("KVCache::commit", id);
  if (length < 0 || length > sequence.length) {
    fail(ErrorKind::value, "KVCache::commit", "length must be in 0..{}, the length; got {}",
         sequence.length, length);
  }
  sequence.committed = std::max(sequence.committed, length);
  state_->chain_pages(sequence);
}

std::int64_t KVCache::committed(SequenceId sequence) const {
  return State::committed_of(state_->get("KVCache::committed", sequence));
}

}  // namespace quire
