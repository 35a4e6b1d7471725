// KVCache::keep: keeps some of the last tokens of sequences and moves their rows together. Cache
// layer.
#include <algorithm>
#include <vector>

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

using cache::LayerGroup;
using cache::PageTable;
using cache::RowPlace;
using cache::Sequence;

namespace {

constexpr const char* kKeep = "KVCache::keep";

// Of one sequence: the token that goes to position begin + i is at positions[i] > begin + i.
struct Move {
  std::uint32_t slot = 0;
  std::int64_t begin = 0;
  std::span<const std::int64_t> positions = {};

  std::int64_t length() const { return begin + std::ssize(positions); }
};

void check_kept(const Sequence& sequence, const KeptTokens& kept) {
  if (kept.begin < 0 || kept.begin > sequence.length) {
    fail(ErrorKind::value, kKeep, "begin must be in 0..{}, the length; got {}", sequence.length,
         kept.begin);
  }
  std::int64_t least = kept.begin;
  for (const std::int64_t position : kept.positions) {
    if (position < least || position >= sequence.length) {
      fail(ErrorKind::value, kKeep,
           "positions must ascend and be in {}..{}, from begin to the last token; got {}",
           kept.begin, sequence.length - 1, position);
    }
    least = position + 1;
  }
}

// Leading tokens that stay where they are need no move.
Move move_of(const KeptTokens& kept) {
  Move move{kept.sequence.slot, kept.begin, kept.positions};
  while (!move.positions.empty() && move.positions.front() == move.begin) {
    move.positions = move.positions.subspan(1);
    ++move.begin;
  }
  return move;
}

// Pages of a table that rows move to: first <= i < end.
struct Target {
  std::int64_t first, end;
};
Target target_of(const KVCache::State& state, const Move& move) {
  if (move.positions.empty()) return {0, 0};
  return {move.begin / state.options.page_size, state.pages_for(move.length())};
}

// Copies of shared pages, counted as in pages_needed.
std::int64_t copies_needed(const KVCache::State& state, std::size_t group,
                           std::span<const Move> moves) {
  std::vector<std::int32_t> shared;
  const cache::PagePool& pool = state.groups[group].pool;
  for (const Move& move : moves) {
    const PageTable& table = state.sequences[move.slot].tables[group];
    for (auto [i, end] = target_of(state, move); i < end; ++i) {
      const std::int32_t page = table.pages[i];
      if (pool[page].refs > 1) shared.push_back(page);
    }
  }
  std::ranges::sort(shared);
  std::int64_t needed = 0;
  for (std::size_t i = 0, end = 0; i < shared.size(); i = end) {
    while (end < shared.size() && shared[end] == shared[i]) ++end;
    needed += std::min<std::int64_t>(static_cast<std::int64_t>(end - i), pool[shared[i]].refs - 1);
  }
  return needed;
}

// Moves rows to their new positions. A shared page is left to the others and replaced by a copy;
// `old` (with room for the whole table) keeps the pages still to be read.
void move_rows(KVCache::State& state, const Move& move, std::size_t group,
               std::vector<std::int32_t>& old) noexcept {
  LayerGroup& of = state.groups[group];
  PageTable& table = state.sequences[move.slot].tables[group];
  const std::int64_t page_size = state.options.page_size;
  old.assign(table.pages.begin(), table.pages.end());
  const Target target = target_of(state, move);
  for (std::int64_t i = target.first; i < target.end; ++i) {
    std::int32_t& page = table.pages[i];
    const std::int64_t stay = std::clamp<std::int64_t>(move.begin - i * page_size, 0, page_size);
    const std::int64_t fill = std::min(move.length() - i * page_size, page_size);
    if (of.pool[page].refs > 1) {
      const std::int32_t copy = of.pool.take();
      of.rows.copy({page, 0}, {copy, 0}, stay);
      ++of.copied_pages;
      page = copy;
    } else {
      of.pool.forget(page);
    }
    of.pool.set_fill(page, fill);
  }
  // Each moves towards the front, in order, so none is overwritten before it is read.
  for (std::int64_t i = 0; i < std::ssize(move.positions); ++i) {
    const std::int64_t from = move.positions[i], to = move.begin + i;
    of.rows.copy({old[from / page_size], from % page_size},
                 {table.pages[to / page_size], to % page_size}, 1);
  }
  for (std::int64_t i = target.first; i < target.end; ++i) {
    if (old[i] != table.pages[i]) of.pool.drop(old[i]);
  }
}

void move_ids(Sequence& sequence, const Move& move) noexcept {
  std::int64_t known = move.begin;
  for (const std::int64_t from : move.positions) {
    if (from >= std::ssize(sequence.ids)) break;
    sequence.ids[known++] = sequence.ids[from];
  }
  if (std::ssize(sequence.ids) > known) sequence.ids.resize(known);
}

// Of the moved tokens, those before the first unwritten one stay written.
void move_marks(Sequence& sequence, const Move& move) noexcept {
  for (std::int64_t& written : sequence.written) {
    if (written <= move.begin) continue;
    const auto moved = std::ranges::lower_bound(move.positions, written) - move.positions.begin();
    written = move.begin + moved;
  }
}

}  // namespace

void KVCache::keep(std::span<const KeptTokens> step) {
  State& state = *state_;
  std::vector<Move> moves;
  moves.reserve(step.size());
  ++state.last_mark;
  std::size_t longest = 0;
  for (const KeptTokens& kept : step) {
    Sequence& sequence = state.get(kKeep, kept.sequence);
    if (sequence.mark == state.last_mark)
      fail(ErrorKind::value, kKeep, "a sequence must not appear twice in a step");
    sequence.mark = state.last_mark;
    check_kept(sequence, kept);
    moves.push_back(move_of(kept));
    for (const PageTable& table : sequence.tables) {
      if (moves.back().begin < table.hole_end && !moves.back().positions.empty())
        fail(ErrorKind::value, kKeep, "positions {}..{} were released: nothing can move there",
             table.hole_begin, table.hole_end - 1);
      longest = std::max(longest, table.pages.size());
    }
    cache::check_end(kKeep, "the tokens kept", sequence, moves.back().length());
  }
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const cache::PagePool& pool = state.groups[g].pool;
    const std::int64_t needed = copies_needed(state, g, moves);
    if (needed > pool.available()) {
      fail(ErrorKind::runtime, kKeep, "out of pages: {} needed, {} free and {} cached", needed,
           pool.free(), pool.cached());
    }
  }
  std::vector<std::int32_t> old;
  old.reserve(longest);
  for (const Move& move : moves) {
    Sequence& sequence = state.sequences[move.slot];
    if (!move.positions.empty()) {
      for (std::size_t g = 0; g < state.groups.size(); ++g) move_rows(state, move, g, old);
      move_ids(sequence, move);
      move_marks(sequence, move);
      const std::size_t chained = move.begin / state.options.page_size;
      if (sequence.chains.size() > chained) sequence.chains.resize(chained);
      sequence.committed = std::min(sequence.committed, move.begin);
    }
    state.cut(sequence, move.length());
  }
}

void KVCache::keep(SequenceId sequence, std::int64_t begin,
                   std::span<const std::int64_t> positions) {
  const KeptTokens one{.sequence = sequence, .begin = begin, .positions = positions};
  keep(std::span(&one, 1));
}

}  // namespace quire
