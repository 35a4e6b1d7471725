// KVCache: construction; creating, forking and releasing sequences; views and statistics. Tokens
// are in kv_append.cc, rows in kv_write.cc and kv_pages.cc, shortening in kv_shorten.cc and
// kv_keep.cc, persistence in kv_save.cc. Cache layer.
#include "quire/kv_cache.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cache/kv_cache_options.h"
#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using cache::LayerGroup;
using cache::PageTable;
using cache::PrefixChain;
using cache::Sequence;

KVCache::KVCache(const KVCacheOptions& options)
    : state_(std::make_unique<State>(cache::checked_options(options))) {}
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;
KVCache::~KVCache() = default;

const KVCacheOptions& KVCache::options() const noexcept { return state_->options; }

std::int64_t KVCache::group_of(std::int64_t layer) const {
  return static_cast<std::int64_t>(state_->place("KVCache::group_of", layer).group);
}

SequenceId KVCache::create(std::uint64_t salt) {
  state_->prepare_slot(0);
  return state_->use_slot(salt);
}

namespace {

// Finds the longest prefix that a new sequence can begin with: groups without a window must have
// all its pages, groups with one the pages that the next token sees.
class PrefixSearch {
 public:
  PrefixSearch(const KVCache::State& state, std::span<const std::int64_t> ids, std::uint64_t salt)
      : state_(state), ids_(ids), chain_{salt, 0}, salt_(salt) {}

  // Whether all groups without a window have one more node; if so, sets `node` and `chain`.
  bool next() {
    const std::size_t page_size = state_.options.page_size;
    if (ids_.size() < page_size) return false;
    node = state_.index.find_next(chain_, salt_, ids_.first(page_size));
    if (node == cache::kNoNode) return false;
    ids_ = ids_.subspan(page_size);
    for (std::size_t g = 0; g < state_.groups.size(); ++g) {
      if (state_.groups[g].sizes.window == 0 && state_.index.page(node, g) == kNoPage) return false;
    }
    return true;
  }

  std::int32_t node = cache::kNoNode;
  const PrefixChain& chain() const { return chain_; }

 private:
  const KVCache::State& state_;
  std::span<const std::int64_t> ids_;
  PrefixChain chain_;
  std::uint64_t salt_;
};

// Whether a group has the pages that a token at position `end` sees, if it has the first `leading`
// pages of the prefix and those from `run` on.
bool sees_all(const KVLayerGroup& group, std::int64_t page_size, std::int64_t pages,
              std::int64_t run, std::int64_t leading) {
  const auto [first, end] = cache::unseen_pages(group, page_size, pages * page_size);
  return run <= std::max(end, std::int64_t{0}) && (first >= end ? run == 0 : leading >= first);
}

// How many pages of the prefix can be used.
std::int64_t usable_pages(const KVCache::State& state, std::span<const std::int64_t> ids,
                          std::uint64_t salt) {
  constexpr std::size_t kFew = 8;
  struct Run {
    std::int64_t begin = 0;    // pages from here to the current one are present
    std::int64_t leading = 0;  // the first this many are present
  };
  std::array<Run, kFew> few{};
  std::vector<Run> many;
  if (state.groups.size() > kFew) many.resize(state.groups.size());
  const std::span<Run> runs =
      many.empty() ? std::span(few).first(state.groups.size()) : std::span(many);
  PrefixSearch search(state, ids, salt);
  std::int64_t pages = 0, usable = 0;
  while (search.next()) {
    ++pages;
    bool is_usable = true;
    for (std::size_t g = 0; g < runs.size(); ++g) {
      if (state.index.page(search.node, g) == kNoPage) {
        runs[g].begin = pages;
      } else if (runs[g].leading == pages - 1) {
        runs[g].leading = pages;
      }
      const KVLayerGroup& group = state.groups[g].sizes;
      is_usable &= group.window == 0 ||
                   sees_all(group, state.options.page_size, pages, runs[g].begin, runs[g].leading);
    }
    if (is_usable) usable = pages;
  }
  return usable;
}

}  // namespace

std::int64_t KVCache::cached_prefix(std::span<const std::int64_t> ids, std::uint64_t salt) const {
  return usable_pages(*state_, ids, salt) * options().page_size;
}

CreatedSequence KVCache::create_with_prefix(std::span<const std::int64_t> ids, std::uint64_t salt) {
  State& state = *state_;
  const std::int64_t pages = usable_pages(state, ids, salt);
  state.prepare_slot(pages);
  const SequenceId id = state.use_slot(salt);
  state.begin_with_prefix(state.sequences[id.slot], ids, pages);
  return {id, pages * options().page_size};
}

void KVCache::State::begin_with_prefix(Sequence& sequence, std::span<const std::int64_t> prefix,
                                       std::int64_t pages) noexcept {
  const std::int64_t page_size = options.page_size, length = pages * page_size;
  PrefixSearch search(*this, prefix, sequence.salt);
  for (std::int64_t i = 0; i < pages; ++i) {
    search.next();
    sequence.chains.push_back(search.chain());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto [first, end] = cache::unseen_pages(groups[g].sizes, page_size, length);
      const bool is_unseen = i >= first && i < end;
      const std::int32_t page = is_unseen ? kNoPage : index.page(search.node, g);
      sequence.tables[g].pages.push_back(page);
      if (!is_unseen) groups[g].pool.hold(page);
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto [first, end] = cache::unseen_pages(groups[g].sizes, page_size, length);
    PageTable& table = sequence.tables[g];
    if (first < end) table.hole_begin = first * page_size, table.hole_end = end * page_size;
    groups[g].live_tokens += length - table.hole();
  }
  sequence.ids.assign(prefix.begin(), prefix.begin() + length);
  sequence.length = sequence.committed = sequence.written_in_all = length;
  std::ranges::fill(sequence.written, length);
}

SequenceId KVCache::fork(SequenceId sequence, std::int64_t position) {
  State& state = *state_;
  cache::check_end("KVCache::fork", "position", state.get("KVCache::fork", sequence), position);
  const std::int64_t n_pages = state.pages_for(position);
  Sequence& child = state.prepare_slot(n_pages);
  const Sequence& parent = state.sequences[sequence.slot];
  const SequenceId id = state.use_slot(parent.salt);
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const PageTable& from = parent.tables[g];
    PageTable& to = child.tables[g];
    to.pages.assign(from.pages.begin(), from.pages.begin() + n_pages);
    to.hole_begin = from.hole_begin;
    to.hole_end = from.hole_end;
    for (const std::int32_t page : to.pages)
      if (page != kNoPage) state.groups[g].pool.hold(page);
  }
  const auto known = std::min(std::ssize(parent.ids), position);
  child.ids.assign(parent.ids.begin(), parent.ids.begin() + known);
  const auto chained = std::min(std::ssize(parent.chains), position / options().page_size);
  child.chains.assign(parent.chains.begin(), parent.chains.begin() + chained);
  child.committed = parent.committed;
  std::ranges::copy(parent.written, child.written.begin());
  state.shorten(child, position);
  for (std::size_t g = 0; g < state.groups.size(); ++g)
    state.groups[g].live_tokens += position - child.tables[g].hole();
  return id;
}

SequenceId KVCache::fork(SequenceId sequence) {
  return fork(sequence, state_->get("KVCache::fork", sequence).length);
}

void KVCache::release(SequenceId id) {
  state_->get("KVCache::release", id);
  state_->free_slot(id.slot);
}

namespace {

const LayerGroup& checked_group(const char* where, const KVCache::State& state,
                                std::int64_t group) {
  if (group < 0 || group >= std::ssize(state.groups)) {
    fail(ErrorKind::index, where, "group must be in 0..{}; got {}", state.groups.size() - 1, group);
  }
  return state.groups[group];
}

}  // namespace

SequenceView KVCache::view(SequenceId id, std::int64_t group) const {
  const Sequence& sequence = state_->get("KVCache::view", id);
  checked_group("KVCache::view", *state_, group);
  const PageTable& table = sequence.tables[group];
  const std::size_t used = state_->pages_for(sequence.length);
  return {.pages = std::span(table.pages).first(used),
          .begin = table.hole_begin == 0 ? table.hole_end : 0,
          .length = sequence.length,
          .hole_begin = table.hole_begin,
          .hole_end = table.hole_end};
}

std::uint64_t KVCache::version() const noexcept { return state_->version; }

bool KVCache::contains(SequenceId id) const noexcept {
  return id.cache == state_->number && id.slot < state_->sequences.size() &&
         state_->sequences[id.slot].live && state_->sequences[id.slot].generation == id.generation;
}

std::span<const std::int64_t> KVCache::ids(SequenceId sequence) const {
  return state_->get("KVCache::ids", sequence).ids;
}

namespace {

void add(KVCacheStats& stats, const LayerGroup& group, std::int64_t page_size) noexcept {
  const cache::PagePool& pool = group.pool;
  stats.live_tokens += group.live_tokens;
  stats.stored_tokens += pool.filled();
  stats.pages += group.sizes.n_pages;
  stats.used_pages += group.sizes.n_pages - pool.available();
  stats.shared_pages += pool.shared();
  stats.cached_pages += pool.cached();
  stats.free_pages += pool.free();
  stats.evictions += pool.evictions();
  stats.copied_pages += group.copied_pages;
  const std::int64_t token = cache::token_bytes(group.sizes), page = token * page_size;
  stats.token_bytes += token;
  stats.bytes += group.sizes.n_pages * page;
  stats.used_bytes += (group.sizes.n_pages - pool.available()) * page;
}

void finish(KVCacheStats& stats, const KVCache::State& state) noexcept {
  stats.sequences = state.live_sequences;
  const std::int64_t slots = stats.used_pages * state.options.page_size;
  if (slots > 0)
    stats.waste = static_cast<double>(slots - stats.stored_tokens) / static_cast<double>(slots);
}

}  // namespace

KVCacheStats KVCache::stats() const noexcept {
  const FloatEnv float_env;
  KVCacheStats stats;
  for (const LayerGroup& group : state_->groups) add(stats, group, options().page_size);
  finish(stats, *state_);
  return stats;
}

KVCacheStats KVCache::stats(std::int64_t group) const {
  const FloatEnv float_env;
  KVCacheStats stats;
  add(stats, checked_group("KVCache::stats", *state_, group), options().page_size);
  finish(stats, *state_);
  return stats;
}

}  // namespace quire
