// KVCache: saves a sequence as bytes and loads it, and all of them one after the other. A saved
// sequence is a header, the ids of its tokens, and for each layer of each group the keys and the
// values, each [kv_heads, tokens, dim], codes followed by the scales of their rows: independent of
// pages. Header and rest each end with a checksum. Headers are in kv_header.cc, files in
// kv_file.cc. Cache layer.
#include "cache/kv_save.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "cache/byte_stream.h"
#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/memory.h"

namespace quire {

using cache::ByteReader;
using cache::ByteWriter;
using cache::GroupHeader;
using cache::LayerGroup;
using cache::PageTable;
using cache::PrefixChain;
using cache::Saved;
using cache::Sequence;

namespace {

// Calls visit(layer's rows, page, slot, tokens, head) for all rows of a table, in the order of
// saving.
template <class Group, class Visit>
void visit_rows(Group& group, std::int64_t page_size, const PageTable& table, std::int64_t length,
                const Visit& visit) {
  const auto visit_head = [&](auto& rows, std::int64_t head) {
    for (std::int64_t at = 0; at < length;) {
      if (at >= table.hole_begin && at < table.hole_end) at = table.hole_end;
      const std::int64_t slot = at % page_size;
      std::int64_t n = std::min(page_size - slot, length - at);
      if (at < table.hole_begin && table.hole() > 0) n = std::min(n, table.hole_begin - at);
      if (n == 0) break;
      visit(rows, table.pages[at / page_size], slot, n, head);
      at += n;
    }
  };
  for (std::size_t layer = 0; layer < group.rows.layers(); ++layer) {
    group.rows.visit_stored(layer, [&](auto& rows) {
      for (std::int64_t head = 0; head < group.sizes.kv_heads; ++head) visit_head(rows, head);
    });
  }
}

template <class Rows>
auto bytes_of(Rows& rows, std::int32_t page, std::int64_t slot, std::int64_t n, std::int64_t head) {
  const std::int64_t row = cache::row_bytes(rows);
  return std::span(cache::page_rows(rows, page, head) + slot * row,
                   static_cast<std::size_t>(n * row));
}

std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  return a > std::numeric_limits<std::int64_t>::max() - b ? std::numeric_limits<std::int64_t>::max()
                                                          : a + b;
}

// Bytes after the headers, without the checksum.
std::int64_t payload_bytes(const KVCache::State& state, const Saved& saved) {
  std::int64_t bytes = saturating_product(saved.sequence.length, 8);
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const GroupHeader& group = saved.groups[g];
    const std::int64_t tokens = saved.sequence.length - (group.hole_end - group.hole_begin);
    bytes = saturating_sum(bytes,
                           saturating_product(tokens, cache::token_bytes(state.groups[g].sizes)));
  }
  return bytes;
}

void put_sequence(const KVCache::State& state, const Sequence& sequence, ByteWriter& to) {
  cache::put_header(state, sequence, to);
  to.put(std::as_bytes(std::span(sequence.ids)));
  // Every token gets an id (a placeholder if unknown), so a page table is never larger than the
  // data saved for it.
  for (std::int64_t i = std::ssize(sequence.ids); i < sequence.length; ++i) to.put(std::int64_t{0});
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    visit_rows(state.groups[g], state.options.page_size, sequence.tables[g], sequence.length,
               [&](const Tensor& rows, std::int32_t page, std::int64_t slot, std::int64_t n,
                   std::int64_t head) { to.put(bytes_of(rows, page, slot, n, head)); });
  }
  to.put_checksum();
}

void check_written(const char* where, const Sequence& sequence) {
  if (sequence.written_in_all < sequence.length) {
    fail(ErrorKind::value, where, "rows from position {} on are not written in all layers",
         sequence.written_in_all);
  }
}

// Memory grows with the bytes received, whatever the header claims.
std::vector<std::int64_t> get_ids(std::int64_t count, ByteReader& from) {
  constexpr std::int64_t kSome = 1 << 13;
  std::vector<std::int64_t> ids;
  while (std::ssize(ids) < count) {
    const std::int64_t n = std::min(std::max(kSome, std::ssize(ids)), count - std::ssize(ids));
    const std::size_t have = ids.size();
    ids.resize(have + n);
    from.get(std::as_writable_bytes(std::span(ids).subspan(have)));
  }
  return ids;
}

// Finds which pages of a saved sequence are already in the index, and how many pages each group
// needs.
class PagesToLoad {
 public:
  PagesToLoad(const KVCache::State& state, const Saved& saved, std::span<const std::int64_t> ids,
              std::uint64_t salt)
      : state_(state), saved_(saved) {
    const std::size_t page_size = state.options.page_size;
    const std::size_t sure = std::min(saved.sequence.known, saved.sequence.committed);
    PrefixChain chain{salt, 0};
    for (std::size_t at = 0; at + page_size <= sure; at += page_size) {
      const std::int32_t node = state.index.find_next(chain, salt, ids.subspan(at, page_size));
      if (node == cache::kNoNode) break;
      nodes_.push_back(node);
    }
  }

  std::int64_t count() const { return state_.pages_for(saved_.sequence.length); }
  // Whether the page lies entirely among released tokens.
  bool is_hole(std::size_t group, std::int64_t page) const {
    const GroupHeader& of = saved_.groups[group];
    const std::int64_t begin = page * state_.options.page_size;
    return begin >= of.hole_begin && begin + state_.options.page_size <= of.hole_end;
  }
  // The page of the pool that already holds its rows, or kNoPage.
  std::int32_t found(std::size_t group, std::int64_t page) const {
    if (page >= std::ssize(nodes_)) return kNoPage;
    return state_.index.page(nodes_[page], group);
  }

  void require(const char* where) const {
    for (std::size_t g = 0; g < state_.groups.size(); ++g) {
      const cache::PagePool& pool = state_.groups[g].pool;
      std::int64_t needed = 0, cached = 0;
      const GroupHeader& of = saved_.groups[g];
      for (std::int64_t i = 0; i < count(); ++i) {
        if (is_hole(g, i)) {  // more of them may follow
          i = std::max(i, of.hole_end / state_.options.page_size - 1);
          continue;
        }
        const std::int32_t page = found(g, i);
        needed += page == kNoPage;
        cached += page != kNoPage && pool[page].refs == 0;
        if (needed > state_.options.n_pages) break;
      }
      if (needed + cached <= pool.available()) continue;
      fail(ErrorKind::runtime, where, "out of pages: {} needed, {} free and {} cached",
           needed + cached, pool.free(), pool.cached());
    }
  }

 private:
  const KVCache::State& state_;
  const Saved& saved_;
  std::vector<std::int32_t> nodes_;
};

// Requires room in the slot and pages in the pools.
void fill_tables(KVCache::State& state, Sequence& sequence, const Saved& saved,
                 const PagesToLoad& pages) noexcept {
  const std::int64_t page_size = state.options.page_size, length = saved.sequence.length;
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    cache::PagePool& pool = state.groups[g].pool;
    PageTable& table = sequence.tables[g];
    table.hole_begin = saved.groups[g].hole_begin;
    table.hole_end = saved.groups[g].hole_end;
    // Pages found are held before others are taken, which may evict.
    for (std::int64_t i = 0; i < pages.count(); ++i) {
      const std::int32_t page = pages.is_hole(g, i) ? kNoPage : pages.found(g, i);
      table.pages.push_back(page);
      if (page != kNoPage) pool.hold(page);
    }
    for (std::int64_t i = 0; i < pages.count(); ++i) {
      std::int32_t& page = table.pages[i];
      if (page != kNoPage || pages.is_hole(g, i)) continue;
      page = pool.take();
      pool.set_fill(page, std::min(page_size, length - i * page_size));
    }
    state.groups[g].live_tokens += length - table.hole();
  }
}

// Reads rows into the new pages; pages that were found already have the same rows.
void get_rows(KVCache::State& state, const Sequence& sequence, ByteReader& from) {
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    LayerGroup& group = state.groups[g];
    visit_rows(
        group, state.options.page_size, sequence.tables[g], sequence.length,
        [&](Tensor& rows, std::int32_t page, std::int64_t slot, std::int64_t n, std::int64_t head) {
          const auto bytes = bytes_of(rows, page, slot, n, head);
          if (group.pool[page].is_findable()) {
            from.skip(bytes.size());
          } else {
            from.get(bytes);
          }
        });
  }
}

SequenceId get_sequence(KVCache::State& state, std::uint64_t salt, ByteReader& from) {
  const Saved saved = cache::get_header(state, from);
  const std::vector<std::int64_t> ids = get_ids(saved.sequence.length, from);
  if (std::ranges::any_of(ids.begin() + saved.sequence.known, ids.end(),
                          [](std::int64_t id) { return id != 0; }))
    fail(ErrorKind::value, from.where(), "ids after the {} that are known must be 0",
         saved.sequence.known);
  const PagesToLoad pages(state, saved, ids, salt);
  pages.require(from.where());
  Sequence& sequence = state.prepare_slot(pages.count());
  const SequenceId id = state.use_slot(salt);
  sequence.length = saved.sequence.length;
  fill_tables(state, sequence, saved, pages);
  try {
    get_rows(state, sequence, from);
    from.check_checksum();
  } catch (...) {
    state.free_slot(id.slot);
    throw;
  }
  sequence.ids.assign(ids.begin(), ids.begin() + saved.sequence.known);
  sequence.committed = saved.sequence.committed;
  sequence.written_in_all = sequence.length;
  std::ranges::fill(sequence.written, sequence.length);
  state.chain_pages(sequence);
  return id;
}

// Reads the bytes of a span piece by piece.
class SpanSource {
 public:
  explicit SpanSource(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::size_t operator()(std::span<std::byte> to) {
    const std::size_t n = std::min(to.size(), rest_.size());
    if (n > 0) std::memcpy(to.data(), rest_.data(), n);
    rest_ = rest_.subspan(n);
    return n;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

namespace cache {

void check_saved(const KVCache::State& state, ByteReader& from) {
  const Saved saved = cache::get_header(state, from);
  for (std::int64_t rest = payload_bytes(state, saved); rest > 0;) {
    const std::int64_t n = std::min<std::int64_t>(rest, 1 << 20);
    from.skip(n);
    rest -= n;
  }
  from.check_checksum();
}

}  // namespace cache

std::vector<std::byte> KVCache::save(SequenceId id) const {
  const State& state = *state_;
  const Sequence& sequence = state.get("KVCache::save", id);
  check_written("KVCache::save", sequence);
  Saved sizes;
  sizes.sequence.length = sequence.length;
  for (const PageTable& table : sequence.tables)
    sizes.groups.push_back({.hole_begin = table.hole_begin, .hole_end = table.hole_end});
  const std::int64_t size =
      saturating_sum(cache::header_bytes(state) + 8, payload_bytes(state, sizes));
  require_memory("KVCache::save", "the bytes of the sequence", size);
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  const auto append = [&](std::span<const std::byte> some) {
    bytes.insert(bytes.end(), some.begin(), some.end());
  };
  ByteWriter to(append);
  put_sequence(state, sequence, to);
  to.finish();
  return bytes;
}

void KVCache::save_to(SequenceId id, ByteSink sink) const {
  const Sequence& sequence = state_->get("KVCache::save_to", id);
  check_written("KVCache::save_to", sequence);
  ByteWriter to(sink);
  put_sequence(*state_, sequence, to);
  to.finish();
}

SequenceId KVCache::load(std::span<const std::byte> bytes, std::uint64_t salt) {
  constexpr const char* kLoad = "KVCache::load";
  SpanSource once(bytes);
  ByteReader check(kLoad, once);
  cache::check_saved(*state_, check);
  if (!once.rest().empty())
    fail(ErrorKind::value, kLoad, "{} bytes follow the saved sequence", once.rest().size());
  SpanSource again(bytes);
  ByteReader from(kLoad, again);
  return get_sequence(*state_, salt, from);
}

SequenceId KVCache::load_from(ByteSource source, std::uint64_t salt) {
  ByteReader from("KVCache::load_from", source);
  return get_sequence(*state_, salt, from);
}

void KVCache::save_all(ByteSink sink) const {
  const State& state = *state_;
  for (const Sequence& sequence : state.sequences)
    if (sequence.live) check_written("KVCache::save_all", sequence);
  ByteWriter to(sink);
  cache::AllHeader header;
  header.sequences = state.live_sequences;
  to.put(header);
  to.put_checksum();
  for (std::size_t slot = 0; slot < state.sequences.size(); ++slot) {
    const Sequence& sequence = state.sequences[slot];
    if (!sequence.live) continue;
    to.put(cache::AllEntry{.salt = sequence.salt,
                           .cache = state.number,
                           .slot = static_cast<std::uint32_t>(slot),
                           .generation = sequence.generation});
    to.put_checksum();
    put_sequence(state, sequence, to);
  }
  to.finish();
}

std::vector<LoadedSequence> KVCache::load_all(ByteSource source) {
  ByteReader from("KVCache::load_all", source);
  const cache::AllHeader header = cache::get_all_header(from);
  std::vector<LoadedSequence> loaded;
  try {
    for (std::int64_t i = 0; i < header.sequences; ++i) {
      const cache::AllEntry entry = cache::get_all_entry(from);
      loaded.emplace_back().saved = {
          .cache = entry.cache, .slot = entry.slot, .generation = entry.generation};
      loaded.back().sequence = get_sequence(*state_, entry.salt, from);
    }
  } catch (...) {
    for (const LoadedSequence& one : loaded)
      if (contains(one.sequence)) state_->free_slot(one.sequence.slot);
    throw;
  }
  return loaded;
}

}  // namespace quire
