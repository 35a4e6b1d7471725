// KVCache: reserves room for new tokens. Everything that can fail (handles, counts, pages, memory
// of page tables) is settled before the first change; the rest is noexcept. Cache layer.
#include <algorithm>
#include <utility>
#include <vector>

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

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

// If k sequences of a step append to the same page, which r sequences hold, min(k, r - 1) of them
// need a copy: the last holder keeps the page.
std::int64_t KVCache::State::pages_needed(const char* where,
                                          std::span<const NewTokens> step) const {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
  std::int64_t needed = 0;
  std::vector<std::int32_t> shared;
  for (const NewTokens& tokens : step) {
    const Sequence& sequence = get(where, tokens.sequence);
    if (tokens.count == 0) continue;
    // Larger counts cannot fit, and their sums would overflow.
    const std::int64_t count = std::min(tokens.count, kMostTokens);
    const std::int64_t wanted = pages_for(sequence.length + count);
    needed += std::max<std::int64_t>(wanted - std::ssize(sequence.pages), 0);
    if (sequence.length % options.page_size == 0) continue;
    const std::int32_t page = sequence.pages[sequence.length / options.page_size];
    if (pool[page].refs > 1) shared.push_back(page);
  }
  std::ranges::sort(shared);
  for (std::size_t i = 0; i < shared.size();) {
    std::size_t end = i;
    while (end < shared.size() && shared[end] == shared[i]) ++end;
    needed += std::min<std::int64_t>(static_cast<std::int64_t>(end - i), pool[shared[i]].refs - 1);
    i = end;
  }
  return needed;
}

void KVCache::State::require_pages(const char* where, std::span<const NewTokens> step) const {
  const std::int64_t needed = pages_needed(where, step);
  if (needed > pool.available()) {
    fail(ErrorKind::runtime, where, "out of pages: {} needed, {} free and {} cached", needed,
         pool.free(), pool.cached());
  }
}

// All tables that must grow are allocated before any is replaced: if memory runs out, what was
// read from a table (a SequenceView, an AttendPlan) stays valid.
void KVCache::State::prepare_tables(std::span<const NewTokens> step) {
  std::vector<std::pair<Sequence*, std::vector<std::int32_t>>> grown;
  for (const NewTokens& tokens : step) {
    Sequence& sequence = sequences[tokens.sequence.slot];
    const std::size_t wanted = pages_for(sequence.length + tokens.count);
    const std::size_t room = sequence.pages.capacity();
    if (wanted <= room) continue;
    std::vector<std::int32_t>& pages = grown.emplace_back(&sequence, 0).second;
    pages.reserve(std::max(wanted, 2 * room));
    pages.assign(sequence.pages.begin(), sequence.pages.end());
  }
  for (auto& [sequence, pages] : grown) sequence->pages.swap(pages);
}

void KVCache::State::own_page(Sequence& sequence, std::int64_t position) noexcept {
  const std::int64_t rows = position % options.page_size;
  std::int32_t& page = sequence.pages[position / options.page_size];
  if (pool[page].refs > 1) {
    const std::int32_t copy = pool.take();
    copy_page(page, copy, rows);
    pool.drop(page);
    pool.set_fill(copy, rows);
    page = copy;
  } else if (pool[page].serial != 0) {
    pool.forget(page);
    pool.set_fill(page, rows);
  }
}

void KVCache::State::take_pages(Sequence& sequence, std::int64_t count) noexcept {
  if (count == 0) return;
  if (sequence.length % options.page_size != 0) own_page(sequence, sequence.length);
  const std::int64_t wanted = pages_for(sequence.length + count);
  pool.expect_takes(wanted - std::ssize(sequence.pages));
  while (std::ssize(sequence.pages) < wanted) sequence.pages.push_back(pool.take());
}

// A token's id is kept in its page. Ids after tokens without are of no use: no prefix can be told.
void KVCache::State::lengthen(Sequence& sequence, const NewTokens& tokens) noexcept {
  const bool known = !tokens.ids.empty() && sequence.known == sequence.length;
  const std::int64_t page_size = options.page_size, end = sequence.length + tokens.count;
  for (std::int64_t at = sequence.length; at < end;) {
    const std::int32_t page = sequence.pages[at / page_size];
    const std::int64_t slot = at % page_size, n = std::min(page_size - slot, end - at);
    if (known) {
      const auto ids = tokens.ids.subspan(at - sequence.length, n);
      std::ranges::copy(ids, pool.ids(page).begin() + slot);
    }
    pool.set_fill(page, slot + n);
    at += n;
  }
  live_tokens += tokens.count;
  if (known) sequence.known = end;
  sequence.length = end;
}

bool KVCache::can_reserve(std::span<const NewTokens> step) const {
  constexpr const char* kWhere = "KVCache::can_reserve";
  // Readers may not leave marks in sequences, so here slots are sorted.
  std::vector<std::uint32_t> slots;
  slots.reserve(step.size());
  for (const NewTokens& tokens : step) {
    state_->get(kWhere, tokens.sequence);
    check_tokens(kWhere, tokens);
    slots.push_back(tokens.sequence.slot);
  }
  std::ranges::sort(slots);
  if (std::ranges::adjacent_find(slots) != slots.end()) throw_twice(kWhere);
  return state_->pages_needed(kWhere, step) <= state_->pool.available();
}

bool KVCache::can_reserve(SequenceId sequence, std::int64_t count) const {
  const NewTokens one{sequence, count};
  return can_reserve(std::span(&one, 1));
}

void KVCache::reserve(std::span<const NewTokens> step) {
  state_->check_step("KVCache::reserve", step);
  state_->require_pages("KVCache::reserve", step);
  state_->prepare_tables(step);
  for (const NewTokens& tokens : step)
    state_->take_pages(state_->sequences[tokens.sequence.slot], tokens.count);
  ++state_->version;
}

void KVCache::reserve(SequenceId sequence, std::int64_t count) {
  const NewTokens one{sequence, count};
  reserve(std::span(&one, 1));
}

void KVCache::append(std::span<const NewTokens> step) {
  const FloatEnv float_env;
  state_->check_step("KVCache::append", step);
  state_->require_pages("KVCache::append", step);
  state_->prepare_tables(step);
  for (const NewTokens& tokens : step) {
    Sequence& sequence = state_->sequences[tokens.sequence.slot];
    state_->take_pages(sequence, tokens.count);
    state_->lengthen(sequence, tokens);
  }
  ++state_->version;
}

void KVCache::append(SequenceId sequence, std::int64_t count, std::span<const std::int64_t> ids) {
  const FloatEnv float_env;
  const NewTokens one{sequence, count, ids};
  append(std::span(&one, 1));
}

}  // namespace quire
