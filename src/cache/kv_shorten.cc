// KVCache: shortens sequences: cuts off their end and gives back pages that no query needs. Cache
// layer.
#include <algorithm>
#include <utility>
#include <vector>

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

using cache::PageTable;
using cache::Sequence;

namespace cache {

void check_end(const char* where, const char* what, const Sequence& sequence,
               std::int64_t position) {
  if (position < 0 || position > sequence.length) {
    fail(ErrorKind::value, where, "{} must be in 0..{}, the length; got {}", what, sequence.length,
         position);
  }
  for (const PageTable& table : sequence.tables) {
    if (table.may_end_at(position)) continue;
    if (table.hole_begin > 0) {
      fail(ErrorKind::value, where, "{} must not lie in {}..{}, which was released; got {}", what,
           table.hole_begin, table.hole_end - 1, position);
    }
    fail(ErrorKind::value, where,
         "{} must not lie before {}, what comes earlier was released; got {}", what, table.hole_end,
         position);
  }
}

UnseenPages unseen_pages(const KVLayerGroup& group, std::int64_t page_size,
                         std::int64_t next) noexcept {
  if (group.window == 0) return {};
  const std::int64_t first_seen = std::max<std::int64_t>(next - group.window + 1, 0);
  return {ceil_div(group.sink_tokens, page_size), first_seen / page_size};
}

}  // namespace cache

void KVCache::State::drop_pages_from(Sequence& sequence, std::int64_t first_page) noexcept {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::int32_t>& pages = sequence.tables[g].pages;
    while (std::ssize(pages) > first_page) {
      const std::int32_t page = pages.back();
      pages.pop_back();
      if (page != kNoPage) groups[g].pool.drop(page);
    }
  }
}

void KVCache::State::shorten(Sequence& sequence, std::int64_t length) noexcept {
  const auto at_most = [](auto& list, std::int64_t size) {
    if (std::ssize(list) > size) list.resize(size);
  };
  at_most(sequence.ids, length);
  at_most(sequence.chains, length / options.page_size);
  sequence.length = length;
  sequence.committed = std::min(sequence.committed, length);
  sequence.layers_behind = 0;
  sequence.written_in_all = length;
  for (std::int64_t& written : sequence.written) {
    written = std::min(written, length);
    sequence.written_in_all = std::min(sequence.written_in_all, written);
    if (written < length) ++sequence.layers_behind;
  }
  for (PageTable& table : sequence.tables)
    if (length < table.hole_end) table.hole_begin = table.hole_end = 0;
}

void KVCache::State::cut(Sequence& sequence, std::int64_t length) noexcept {
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups[g].live_tokens -= sequence.length - sequence.tables[g].hole();
  drop_pages_from(sequence, pages_for(length));
  shorten(sequence, length);
  const std::int64_t rest = length % options.page_size;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].live_tokens += length - sequence.tables[g].hole();
    if (rest == 0) continue;
    const std::int32_t last = sequence.tables[g].pages.back();
    // Pages that are shared or can be found keep their contents.
    cache::PagePool& pool = groups[g].pool;
    if (last != kNoPage && pool[last].refs == 1 && !pool[last].is_findable())
      pool.set_fill(last, rest);
  }
  ++version;
}

void KVCache::State::release_pages(Sequence& sequence, std::size_t group, std::int64_t first,
                                   std::int64_t end) noexcept {
  PageTable& table = sequence.tables[group];
  const std::int64_t page_size = options.page_size;
  std::int64_t begin = first * page_size, stop = end * page_size;
  if (first >= end || !table.joins_hole(begin, stop)) return;
  if (table.hole() > 0) {
    begin = std::min(begin, table.hole_begin);
    stop = std::max(stop, table.hole_end);
  }
  if (begin == table.hole_begin && stop == table.hole_end) return;
  // Last first: the end of a prefix is evicted before its beginning.
  table.visit_unseen(first, end, page_size, [&](std::int64_t i) {
    std::int32_t& page = table.pages[i];
    if (page != kNoPage) groups[group].pool.drop(page);
    page = kNoPage;
  });
  groups[group].live_tokens -= (stop - begin) - table.hole();
  table.hole_begin = begin;
  table.hole_end = stop;
  ++version;
}

void KVCache::truncate(SequenceId id, std::int64_t length) {
  State& state = *state_;
  Sequence& sequence = state.get("KVCache::truncate", id);
  cache::check_end("KVCache::truncate", "length", sequence, length);
  state.cut(sequence, length);
}

void KVCache::release_between(SequenceId id, std::int64_t begin, std::int64_t end) {
  constexpr const char* kWhere = "KVCache::release_between";
  State& state = *state_;
  Sequence& sequence = state.get(kWhere, id);
  if (begin < 0 || end < begin || end > sequence.length) {
    fail(ErrorKind::value, kWhere,
         "begin and end must be in 0..{}, the length, in order; got {} and {}", sequence.length,
         begin, end);
  }
  const std::int64_t page_size = options().page_size;
  const std::int64_t first = ceil_div(begin, page_size), stop = end / page_size;
  if (first >= stop) return;
  for (const PageTable& table : sequence.tables) {
    if (!table.joins_hole(first * page_size, stop * page_size)) {
      fail(ErrorKind::value, kWhere,
           "positions {}..{} were released before; what is released now must join them",
           table.hole_begin, table.hole_end - 1);
    }
  }
  for (std::size_t g = 0; g < state.groups.size(); ++g)
    state.release_pages(sequence, g, first, stop);
}

void KVCache::release_before(SequenceId id, std::int64_t position) {
  constexpr const char* kWhere = "KVCache::release_before";
  State& state = *state_;
  Sequence& sequence = state.get(kWhere, id);
  if (position < 0 || position > sequence.length) {
    fail(ErrorKind::value, kWhere, "position must be in 0..{}, the length; got {}", sequence.length,
         position);
  }
  const std::int64_t end = position / options().page_size;
  for (const PageTable& table : sequence.tables) {
    if (end > 0 && table.hole_begin > end * options().page_size) {
      fail(ErrorKind::value, kWhere,
           "positions {}..{} were released before; what is released now must join them",
           table.hole_begin, table.hole_end - 1);
    }
  }
  for (std::size_t g = 0; g < state.groups.size(); ++g) state.release_pages(sequence, g, 0, end);
}

}  // namespace quire
