// KVCache: a sequence as bytes and back, and all of them one after the other. A saved sequence is a
// header, the ids of its tokens, and for each layer of each group the keys and the values,
// [kv_heads, tokens, dim]: pages leave no trace. Header and rest each end with a checksum. Files
// are in kv_file.cc. Cache layer.
#include "cache/kv_save.h"

#include <algorithm>
#include <array>
#include <bit>
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
using cache::Sequence;
using cache::SequenceHeader;

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are");

// Everything that is known of a sequence before its ids and rows.
struct Saved {
  SequenceHeader sequence;
  std::vector<GroupHeader> groups;
};

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
      visit(rows, table.pages[static_cast<std::size_t>(at / page_size)], slot, n, head);
      at += n;
    }
  };
  for (std::size_t layer = 0; layer < group.rows.layers(); ++layer) {
    for (auto* rows : {&group.rows.k(layer), &group.rows.v(layer)})
      for (std::int64_t head = 0; head < group.sizes.kv_heads; ++head) visit_head(*rows, head);
  }
}

template <class Rows>
auto bytes_of(Rows& rows, std::int32_t page, std::int64_t slot, std::int64_t n, std::int64_t head) {
  const std::int64_t row = rows.shape()[3] * static_cast<std::int64_t>(dtype_size(rows.dtype()));
  return std::span(cache::page_rows(rows, page, head) + slot * row,
                   static_cast<std::size_t>(n * row));
}

std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  return a > std::numeric_limits<std::int64_t>::max() - b ? std::numeric_limits<std::int64_t>::max()
                                                          : a + b;
}

// Bytes behind the headers, without the checksum.
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

std::int64_t header_bytes(const KVCache::State& state) {
  return static_cast<std::int64_t>(sizeof(SequenceHeader) +
                                   state.groups.size() * sizeof(GroupHeader) +
                                   state.places.size() * sizeof(std::int64_t) + 8);
}

void put_sequence(const KVCache::State& state, const Sequence& sequence, ByteWriter& to) {
  SequenceHeader header;
  header.groups = static_cast<std::uint32_t>(state.groups.size());
  header.length = sequence.length;
  header.known = std::ssize(sequence.ids);
  header.committed = KVCache::State::committed_of(sequence);
  to.put(header);
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const KVLayerGroup& sizes = state.groups[g].sizes;
    to.put(GroupHeader{.dtype = static_cast<std::uint64_t>(sizes.dtype),
                       .layers = std::ssize(sizes.layers),
                       .kv_heads = sizes.kv_heads,
                       .head_dim = sizes.head_dim,
                       .v_head_dim = sizes.v_head_dim,
                       .hole_begin = sequence.tables[g].hole_begin,
                       .hole_end = sequence.tables[g].hole_end});
    to.put(std::as_bytes(std::span(sizes.layers)));
  }
  to.put_checksum();
  to.put(std::as_bytes(std::span(sequence.ids)));
  // An id for every token: no page table is larger than what was saved for it.
  for (std::int64_t i = header.known; i < header.length; ++i) to.put(std::int64_t{0});
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

void check_equal(const char* where, const char* name, std::int64_t saved, std::int64_t wanted) {
  if (saved != wanted)
    fail(ErrorKind::value, where, "{} must be the cache's; got {}, and the cache has {}", name,
         saved, wanted);
}

void check_positions(const char* where, const SequenceHeader& header, const GroupHeader& group) {
  if (header.length >= 0 && header.known >= 0 && header.known <= header.length &&
      header.committed >= 0 && header.committed <= header.length && group.hole_begin >= 0 &&
      group.hole_begin <= group.hole_end && group.hole_end <= header.length &&
      (group.hole_begin < group.hole_end || group.hole_begin == 0)) {
    return;
  }
  fail(ErrorKind::value, where,
       "positions do not fit; got length {}, {} ids, {} committed and {}..{} released",
       header.length, header.known, header.committed, group.hole_begin, group.hole_end);
}

GroupHeader get_group(const KVLayerGroup& sizes, ByteReader& from) {
  const char* const where = from.where();
  GroupHeader header;
  from.get(header);
  if (header.dtype != static_cast<std::uint64_t>(sizes.dtype)) {
    fail(ErrorKind::value, where, "dtype must be the cache's, {}; got {}", dtype_name(sizes.dtype),
         header.dtype < kDTypeCount ? dtype_name(static_cast<DType>(header.dtype)) : "none");
  }
  check_equal(where, "layers", header.layers, std::ssize(sizes.layers));
  check_equal(where, "kv_heads", header.kv_heads, sizes.kv_heads);
  check_equal(where, "head_dim", header.head_dim, sizes.head_dim);
  check_equal(where, "v_head_dim", header.v_head_dim, sizes.v_head_dim);
  for (const std::int64_t wanted : sizes.layers) {
    std::int64_t layer = 0;
    from.get(layer);
    check_equal(where, "the layers of a group", layer, wanted);
  }
  return header;
}

Saved get_header(const KVCache::State& state, ByteReader& from) {
  const char* const where = from.where();
  Saved saved;
  from.get(saved.sequence);
  if (saved.sequence.magic != SequenceHeader{}.magic)
    fail(ErrorKind::value, where, "these bytes are not a saved sequence");
  if (saved.sequence.version != cache::kSaveVersion)
    fail(ErrorKind::value, where, "version must be {}; got {}", cache::kSaveVersion,
         saved.sequence.version);
  check_equal(where, "groups", saved.sequence.groups, std::ssize(state.groups));
  saved.groups.reserve(state.groups.size());
  for (const LayerGroup& group : state.groups) saved.groups.push_back(get_group(group.sizes, from));
  from.check_checksum();
  for (const GroupHeader& group : saved.groups) check_positions(where, saved.sequence, group);
  return saved;
}

// Memory is taken as bytes come, whatever the header promises.
std::vector<std::int64_t> get_ids(std::int64_t count, ByteReader& from) {
  constexpr std::int64_t kSome = 1 << 13;
  std::vector<std::int64_t> ids;
  while (std::ssize(ids) < count) {
    const std::int64_t n = std::min(std::max(kSome, std::ssize(ids)), count - std::ssize(ids));
    const std::size_t have = ids.size();
    ids.resize(have + static_cast<std::size_t>(n));
    from.get(std::as_writable_bytes(std::span(ids).subspan(have)));
  }
  return ids;
}

// Which pages of a saved sequence are there already, by node of the index; and how many pages each
// group must have.
class PagesToLoad {
 public:
  PagesToLoad(const KVCache::State& state, const Saved& saved, std::span<const std::int64_t> ids,
              std::uint64_t salt)
      : state_(state), saved_(saved) {
    const auto page_size = static_cast<std::size_t>(state.options.page_size);
    const auto sure =
        static_cast<std::size_t>(std::min(saved.sequence.known, saved.sequence.committed));
    PrefixChain chain{salt, 0};
    for (std::size_t at = 0; at + page_size <= sure; at += page_size) {
      const std::int32_t node = state.index.find_next(chain, salt, ids.subspan(at, page_size));
      if (node == cache::kNoNode) break;
      nodes_.push_back(node);
    }
  }

  std::int64_t count() const { return state_.pages_for(saved_.sequence.length); }
  // It lies between released tokens as a whole.
  bool is_hole(std::size_t group, std::int64_t page) const {
    const GroupHeader& of = saved_.groups[group];
    const std::int64_t begin = page * state_.options.page_size;
    return begin >= of.hole_begin && begin + state_.options.page_size <= of.hole_end;
  }
  // The page of the pool that holds its rows already, or kNoPage.
  std::int32_t found(std::size_t group, std::int64_t page) const {
    if (page >= std::ssize(nodes_)) return kNoPage;
    return state_.index.page(nodes_[static_cast<std::size_t>(page)], group);
  }

  void require(const char* where) const {
    for (std::size_t g = 0; g < state_.groups.size(); ++g) {
      const cache::PagePool& pool = state_.groups[g].pool;
      std::int64_t needed = 0, cached = 0;
      const GroupHeader& of = saved_.groups[g];
      for (std::int64_t i = 0; i < count(); ++i) {
        if (is_hole(g, i)) {  // any number of them may follow
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

// The slot has room, the pools have the pages.
void fill_tables(KVCache::State& state, Sequence& sequence, const Saved& saved,
                 const PagesToLoad& pages) noexcept {
  const std::int64_t page_size = state.options.page_size, length = saved.sequence.length;
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    cache::PagePool& pool = state.groups[g].pool;
    PageTable& table = sequence.tables[g];
    table.hole_begin = saved.groups[g].hole_begin;
    table.hole_end = saved.groups[g].hole_end;
    // Those that are there are held before others are taken, which may evict.
    for (std::int64_t i = 0; i < pages.count(); ++i) {
      const std::int32_t page = pages.is_hole(g, i) ? kNoPage : pages.found(g, i);
      table.pages.push_back(page);
      if (page != kNoPage) pool.hold(page);
    }
    for (std::int64_t i = 0; i < pages.count(); ++i) {
      std::int32_t& page = table.pages[static_cast<std::size_t>(i)];
      if (page != kNoPage || pages.is_hole(g, i)) continue;
      page = pool.take();
      pool.set_fill(page, std::min(page_size, length - i * page_size));
    }
    state.groups[g].live_tokens += length - table.hole();
  }
}

// Rows to the pages that are new; those of pages that were there already are the same.
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
  const Saved saved = get_header(state, from);
  const std::vector<std::int64_t> ids = get_ids(saved.sequence.length, from);
  if (std::ranges::any_of(ids.begin() + saved.sequence.known, ids.end(),
                          [](std::int64_t id) { return id != 0; }))
    fail(ErrorKind::value, from.where(), "ids behind the {} that are known must be 0",
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

// The bytes of a span, one piece after the other.
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
  const Saved saved = get_header(state, from);
  for (std::int64_t rest = payload_bytes(state, saved); rest > 0;) {
    const std::int64_t n = std::min<std::int64_t>(rest, 1 << 20);
    from.skip(static_cast<std::size_t>(n));
    rest -= n;
  }
  from.check_checksum();
}

AllHeader get_all_header(ByteReader& from) {
  AllHeader header;
  from.get(header);
  if (header.magic != AllHeader{}.magic)
    fail(ErrorKind::value, from.where(), "these bytes are not the sequences of a cache");
  if (header.version != kSaveVersion)
    fail(ErrorKind::value, from.where(), "version must be {}; got {}", kSaveVersion,
         header.version);
  from.check_checksum();
  return header;
}

AllEntry get_all_entry(ByteReader& from) {
  AllEntry entry;
  from.get(entry);
  from.check_checksum();
  return entry;
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
  const std::int64_t size = saturating_sum(header_bytes(state) + 8, payload_bytes(state, sizes));
  require_memory("KVCache::save", "the bytes of the sequence", size);
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(size));
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
