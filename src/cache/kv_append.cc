// KVCache: room for new tokens. Everything that can fail (handles, counts, pages, memory of page
// tables) is checked before the first change; the changes are noexcept. Cache layer.
#include <algorithm>
#include <ranges>
#include <utility>
#include <vector>

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using cache::LayerGroup;
using cache::PageTable;
using cache::Sequence;

namespace {

void check_tokens(const char* where, const NewTokens& tokens) {
  if (tokens.count < 0) {
    fail(ErrorKind::value, where, "count must not be negative; got {}", tokens.count);
  }
  if (!tokens.ids.empty() && static_cast<std::int64_t>(tokens.ids.size()) != tokens.count) {
    fail(ErrorKind::value, where, "ids must be as many as count, or none; got {} and {}",
         tokens.ids.size(), tokens.count);
  }
}

[[noreturn]] void throw_twice(const char* where) {
  fail(ErrorKind::value, where, "a sequence must not appear twice in a step");
}

// Calls count(page, how many times it is listed) for each page of a list.
template <class Count>
void count_each(std::vector<std::int32_t>& pages, const Count& count) {
  std::ranges::sort(pages);
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t end = i;
    while (end < pages.size() && pages[end] == pages[i]) ++end;
    count(pages[i], static_cast<std::int64_t>(end - i));
    i = end;
  }
}

// Pages that appending would take from a group's pool, less those that it first gives back. If k
// sequences of a step share the page that their tokens begin in, and r hold it after others of the
// step gave it back, min(k, r - 1) of them need a copy: the last one keeps the page.
std::int64_t pages_needed(const KVCache::State& state, std::size_t group,
                          std::span<const NewTokens> step) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
  const LayerGroup& of = state.groups[group];
  const std::int64_t page_size = state.options.page_size;
  std::int64_t needed = 0;
  std::vector<std::int32_t> shared, unseen;
  for (const NewTokens& tokens : step) {
    const Sequence& sequence = state.sequences[tokens.sequence.slot];
    const PageTable& table = sequence.tables[group];
    if (tokens.count == 0) continue;
    // More cannot fit anywhere, and their sum could overflow.
    const std::int64_t count = std::min(tokens.count, kMostTokens);
    const std::int64_t wanted = state.pages_for(sequence.length + count);
    needed += std::max<std::int64_t>(wanted - std::ssize(table.pages), 0);
    const auto [first, end] = cache::unseen_pages(of.sizes, page_size, sequence.length);
    table.visit_unseen(first, end, page_size,
                       [&](std::int64_t i) { unseen.push_back(table.pages[i]); });
    if (sequence.length % page_size == 0) continue;
    const std::int32_t page = table.pages[sequence.length / page_size];
    if (of.pool[page].refs > 1) shared.push_back(page);
  }
  count_each(unseen, [&](std::int32_t page, std::int64_t times) {
    if (page != kNoPage && times == of.pool[page].refs) --needed;
  });
  count_each(shared, [&](std::int32_t page, std::int64_t times) {
    const std::int64_t given_back = std::ranges::ssize(std::ranges::equal_range(unseen, page));
    needed += std::min<std::int64_t>(times, of.pool[page].refs - given_back - 1);
  });
  return needed;
}

}  // namespace

void KVCache::State::check_step(const char* where, std::span<const NewTokens> step) {
  ++last_mark;
  for (const NewTokens& tokens : step) {
    Sequence& sequence = get(where, tokens.sequence);
    check_tokens(where, tokens);
    if (sequence.mark == last_mark) throw_twice(where);
    sequence.mark = last_mark;
  }
}

void KVCache::State::require_pages(const char* where, std::span<const NewTokens> step) const {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const cache::PagePool& pool = groups[g].pool;
    const std::int64_t needed = pages_needed(*this, g, step);
    if (needed <= pool.available()) continue;
    if (groups.size() == 1) {
      fail(ErrorKind::runtime, where, "out of pages: {} needed, {} free and {} cached", needed,
           pool.free(), pool.cached());
    }
    fail(ErrorKind::runtime, where, "out of pages in group {}: {} needed, {} free and {} cached", g,
         needed, pool.free(), pool.cached());
  }
}

// All tables that must grow are allocated before any is replaced: if memory runs out, what was read
// from a table (a SequenceView, an AttendPlan) stays valid.
void KVCache::State::prepare_tables(std::span<const NewTokens> step) {
  std::vector<std::pair<PageTable*, std::vector<std::int32_t>>> grown;
  for (const NewTokens& tokens : step) {
    Sequence& sequence = sequences[tokens.sequence.slot];
    const std::size_t wanted = pages_for(sequence.length + tokens.count);
    const std::size_t room = sequence.tables[0].pages.capacity();
    if (wanted <= room) continue;
    const std::size_t more = std::max(wanted, 2 * room);
    for (PageTable& table : sequence.tables) {
      std::vector<std::int32_t>& pages = grown.emplace_back(&table, 0).second;
      pages.reserve(more);
      pages.assign(table.pages.begin(), table.pages.end());
    }
    sequence.chains.reserve(more);
    sequence.ids.reserve(more * options.page_size);
  }
  for (auto& [table, pages] : grown) table->pages.swap(pages);
}

void KVCache::State::own_page(Sequence& sequence, std::size_t group,
                              std::int64_t position) noexcept {
  LayerGroup& of = groups[group];
  const std::int64_t rows = position % options.page_size;
  std::int32_t& page = sequence.tables[group].pages[position / options.page_size];
  if (of.pool[page].refs > 1) {
    const std::int32_t copy = of.pool.take();
    of.rows.copy({page, 0}, {copy, 0}, rows);
    ++of.copied_pages;
    of.pool.drop(page);
    of.pool.set_fill(copy, rows);
    page = copy;
  } else if (of.pool[page].is_findable()) {
    of.pool.forget(page);
    of.pool.set_fill(page, rows);
  }
}

void KVCache::State::take_pages(Sequence& sequence, std::int64_t count) noexcept {
  if (count == 0) return;
  const std::int64_t wanted = pages_for(sequence.length + count);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (sequence.length % options.page_size != 0) own_page(sequence, g, sequence.length);
    std::vector<std::int32_t>& pages = sequence.tables[g].pages;
    groups[g].pool.expect_takes(wanted - std::ssize(pages));
    while (std::ssize(pages) < wanted) pages.push_back(groups[g].pool.take());
  }
}

// Ids after tokens without ids are useless: no prefix is known. Tokens after drafts are drafts.
void KVCache::State::lengthen(Sequence& sequence, const NewTokens& tokens) noexcept {
  if (tokens.count == 0) return;
  const std::int64_t page_size = options.page_size, begin = sequence.length;
  const std::int64_t end = begin + tokens.count;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t slot = at % page_size, n = std::min(page_size - slot, end - at);
      groups[g].pool.set_fill(sequence.tables[g].pages[at / page_size], slot + n);
      at += n;
    }
    groups[g].live_tokens += tokens.count;
  }
  if (std::ssize(sequence.ids) == begin)
    sequence.ids.insert(sequence.ids.end(), tokens.ids.begin(), tokens.ids.end());
  if (!tokens.draft && sequence.committed == begin) sequence.committed = end;
  sequence.layers_behind = options.layers;
  sequence.length = end;
}

namespace {

// Gives back the pages that no query of this or a later step sees, then takes pages for the tokens.
void make_room(KVCache::State& state, std::span<const NewTokens> step) noexcept {
  for (const NewTokens& tokens : step) {
    Sequence& sequence = state.sequences[tokens.sequence.slot];
    if (tokens.count == 0) continue;
    for (std::size_t g = 0; g < state.groups.size(); ++g) {
      const auto [first, end] =
          cache::unseen_pages(state.groups[g].sizes, state.options.page_size, sequence.length);
      state.release_pages(sequence, g, first, end);
    }
  }
  for (const NewTokens& tokens : step)
    state.take_pages(state.sequences[tokens.sequence.slot], tokens.count);
}

}  // namespace

bool KVCache::can_reserve(std::span<const NewTokens> step) const {
  constexpr const char* kWhere = "KVCache::can_reserve";
  // Const members cannot mark sequences, so duplicates are found by sorting slots.
  std::vector<std::uint32_t> slots;
  slots.reserve(step.size());
  for (const NewTokens& tokens : step) {
    state_->get(kWhere, tokens.sequence);
    check_tokens(kWhere, tokens);
    slots.push_back(tokens.sequence.slot);
  }
  std::ranges::sort(slots);
  if (std::ranges::adjacent_find(slots) != slots.end()) throw_twice(kWhere);
  for (std::size_t g = 0; g < state_->groups.size(); ++g)
    if (pages_needed(*state_, g, step) > state_->groups[g].pool.available()) return false;
  return true;
}

bool KVCache::can_reserve(SequenceId sequence, std::int64_t count) const {
  const NewTokens one{.sequence = sequence, .count = count};
  return can_reserve(std::span(&one, 1));
}

void KVCache::reserve(std::span<const NewTokens> step) {
  state_->check_step("KVCache::reserve", step);
  state_->require_pages("KVCache::reserve", step);
  state_->prepare_tables(step);
  make_room(*state_, step);
  ++state_->version;
}

void KVCache::reserve(SequenceId sequence, std::int64_t count) {
  const NewTokens one{.sequence = sequence, .count = count};
  reserve(std::span(&one, 1));
}

void KVCache::append(std::span<const NewTokens> step) {
  const FloatEnv float_env;
  state_->check_step("KVCache::append", step);
  state_->require_pages("KVCache::append", step);
  state_->prepare_tables(step);
  make_room(*state_, step);
  for (const NewTokens& tokens : step)
    state_->lengthen(state_->sequences[tokens.sequence.slot], tokens);
  ++state_->version;
}

void KVCache::append(SequenceId sequence, std::int64_t count, std::span<const std::int64_t> ids) {
  const FloatEnv float_env;
  const NewTokens one{.sequence = sequence, .count = count, .ids = ids};
  append(std::span(&one, 1));
}

}  // namespace quire
