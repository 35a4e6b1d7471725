// KVCache: construction, sequences made, forked, cut and released, views and statistics. Tokens are
// in kv_append.cc, rows in kv_write.cc, persistence in kv_save.cc. Cache layer.
#include "quire/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cache/kv_cache_state.h"
#include "kernels/attention_order.h"
#include "quire/error.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"

namespace quire {

using cache::PrefixChain;
using cache::Sequence;

namespace {

constexpr std::int64_t kMostSize = std::numeric_limits<std::int32_t>::max();

KVCacheOptions checked(KVCacheOptions options) {
  if (options.v_head_dim == 0) options.v_head_dim = options.head_dim;
  if (options.page_hash == nullptr) options.page_hash = cache::default_page_hash;
  check_size("KVCache", "layers", options.layers, 1, kMostSize);
  check_size("KVCache", "kv_heads", options.kv_heads, 1, kMostSize);
  check_size("KVCache", "head_dim", options.head_dim, 1, kernels::kMostHeadDim);
  check_size("KVCache", "v_head_dim", options.v_head_dim, 1, kernels::kMostHeadDim);
  check_size("KVCache", "page_size", options.page_size, 1, kMostSize);
  check_size("KVCache", "n_pages", options.n_pages, 0, kMostSize);
  if (!is_floating(options.dtype)) {
    fail(ErrorKind::type, "KVCache", "dtype must be f32, f64, bf16 or f16; got {}",
         dtype_name(options.dtype));
  }
  const auto times = saturating_product;
  const std::int64_t row = times(times(options.layers, options.kv_heads),
                                 (options.head_dim + options.v_head_dim) *
                                     static_cast<std::int64_t>(dtype_size(options.dtype)));
  const std::int64_t slots = options.n_pages * options.page_size;
  // Beside rows: an id for each token; for each page its books and up to 8 buckets of the index.
  constexpr std::int64_t kBooks = sizeof(cache::Page) + 8 * sizeof(std::int32_t);
  const std::int64_t rest = times(options.n_pages, options.page_size * 8 + kBooks);
  require_memory("KVCache", "the pool", std::max(times(slots, row), rest));
  return options;
}

void check_position(const char* where, const char* what, const Sequence& sequence,
                    std::int64_t position) {
  if (position < 0 || position > sequence.length) {
    fail(ErrorKind::value, where, "{} must be in 0..{}, the length; got {}", what, sequence.length,
         position);
  }
  if (position < sequence.begin) {
    fail(ErrorKind::value, where,
         "{} must not lie before {}, what comes earlier was released; got {}", what, sequence.begin,
         position);
  }
}

}  // namespace

KVCache::KVCache(const KVCacheOptions& options)
    : state_(std::make_unique<State>(checked(options))) {}
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;
KVCache::~KVCache() = default;

const KVCacheOptions& KVCache::options() const noexcept { return state_->options; }

SequenceId KVCache::create(std::uint64_t salt) {
  state_->prepare_slot(0);
  return state_->use_slot(salt);
}

std::int64_t KVCache::cached_prefix(std::span<const std::int64_t> ids, std::uint64_t salt) const {
  const std::size_t page_size = options().page_size;
  PrefixChain chain{salt, 0};
  std::size_t found = 0;
  while (ids.size() - found >= page_size &&
         state_->pool.find_next(chain, salt, ids.subspan(found, page_size)) != kNoPage) {
    found += page_size;
  }
  return static_cast<std::int64_t>(found);
}

CreatedSequence KVCache::create_with_prefix(std::span<const std::int64_t> ids, std::uint64_t salt) {
  State& state = *state_;
  const std::int64_t page_size = options().page_size;
  const std::int64_t most = static_cast<std::int64_t>(ids.size()) / page_size;
  Sequence& sequence = state.prepare_slot(std::min(most, options().n_pages));
  const SequenceId id = state.use_slot(salt);
  while (sequence.chained < most) {
    const auto next = ids.subspan(sequence.chained * page_size, page_size);
    const std::int32_t page = state.pool.find_next(sequence.chain, salt, next);
    if (page == kNoPage) break;
    state.pool.hold(page);
    sequence.pages.push_back(page);
    ++sequence.chained;
  }
  const std::int64_t found = sequence.chained * page_size;
  sequence.length = sequence.known = sequence.written = found;
  state.live_tokens += found;
  return {id, found};
}

SequenceId KVCache::fork(SequenceId sequence, std::int64_t position) {
  State& state = *state_;
  check_position("KVCache::fork", "position", state.get("KVCache::fork", sequence), position);
  const std::int64_t n_pages = state.pages_for(position);
  Sequence& child = state.prepare_slot(n_pages);
  const Sequence& parent = state.sequences[sequence.slot];
  const SequenceId id = state.use_slot(parent.salt);
  for (std::int64_t i = 0; i < n_pages; ++i) {
    const std::int32_t page = parent.pages[i];
    child.pages.push_back(page);
    if (page != kNoPage) state.pool.hold(page);
  }
  child.begin = parent.begin;
  child.known = parent.known;
  child.written = parent.written;
  child.chained = parent.chained;
  child.chain = parent.chain;
  state.shorten(child, position);
  state.live_tokens += position - child.begin;
  return id;
}

SequenceId KVCache::fork(SequenceId sequence) {
  return fork(sequence, state_->get("KVCache::fork", sequence).length);
}

void KVCache::release(SequenceId id) {
  State& state = *state_;
  Sequence& sequence = state.get("KVCache::release", id);
  state.live_tokens -= sequence.length - sequence.begin;
  state.drop_pages_from(sequence, 0);
  sequence.live = false;
  ++state.version;
  --state.live_sequences;
  // A slot whose generations are used up stays empty, so that no stale handle becomes valid again.
  if (++sequence.generation == 0) return;
  sequence.next_free = state.first_free_slot;
  state.first_free_slot = id.slot;
}

void KVCache::truncate(SequenceId id, std::int64_t length) {
  State& state = *state_;
  Sequence& sequence = state.get("KVCache::truncate", id);
  check_position("KVCache::truncate", "length", sequence, length);
  state.live_tokens -= sequence.length - length;
  ++state.version;
  state.drop_pages_from(sequence, state.pages_for(length));
  state.shorten(sequence, length);
  const std::int64_t rest = length % options().page_size;
  if (rest == 0) return;
  const std::int32_t last = sequence.pages.back();
  // What others share, or what can be found, keeps all it holds.
  if (state.pool[last].refs == 1 && state.pool[last].serial == 0) state.pool.set_fill(last, rest);
}

void KVCache::release_before(SequenceId id, std::int64_t position) {
  State& state = *state_;
  Sequence& sequence = state.get("KVCache::release_before", id);
  if (position < 0 || position > sequence.length) {
    fail(ErrorKind::value, "KVCache::release_before",
         "position must be in 0..{}, the length; got {}", sequence.length, position);
  }
  const std::int64_t page_size = options().page_size;
  const std::int64_t first = position / page_size;
  if (first * page_size <= sequence.begin) return;
  // The last of them first: the end of a prefix is evicted before its beginning.
  for (std::int64_t i = first; i-- > sequence.begin / page_size;)
    state.pool.drop(std::exchange(sequence.pages[i], kNoPage));
  state.live_tokens -= first * page_size - sequence.begin;
  sequence.begin = first * page_size;
  ++state.version;
}

SequenceView KVCache::view(SequenceId id) const {
  const Sequence& sequence = state_->get("KVCache::view", id);
  const std::size_t used = state_->pages_for(sequence.length);
  return {std::span(sequence.pages).first(used), sequence.begin, sequence.length};
}

std::uint64_t KVCache::version() const noexcept { return state_->version; }

bool KVCache::contains(SequenceId id) const noexcept {
  return id.slot < state_->sequences.size() && state_->sequences[id.slot].live &&
         state_->sequences[id.slot].generation == id.generation;
}

ConstTensorView KVCache::k_pages(std::int64_t layer) const {
  cache::check_layer("KVCache::k_pages", options(), layer);
  return std::as_const(state_->k[layer]).view();
}

ConstTensorView KVCache::v_pages(std::int64_t layer) const {
  cache::check_layer("KVCache::v_pages", options(), layer);
  return std::as_const(state_->v[layer]).view();
}

TensorView KVCache::k_pages(std::int64_t layer) {
  cache::check_layer("KVCache::k_pages", options(), layer);
  return state_->k[layer].view();
}

TensorView KVCache::v_pages(std::int64_t layer) {
  cache::check_layer("KVCache::v_pages", options(), layer);
  return state_->v[layer].view();
}

KVCacheStats KVCache::stats() const noexcept {
  const FloatEnv float_env;
  const cache::PagePool& pool = state_->pool;
  KVCacheStats stats;
  stats.sequences = state_->live_sequences;
  stats.live_tokens = state_->live_tokens;
  stats.stored_tokens = pool.filled();
  stats.pages = options().n_pages;
  stats.used_pages = stats.pages - pool.available();
  stats.shared_pages = pool.shared();
  stats.cached_pages = pool.cached();
  stats.free_pages = pool.free();
  stats.evictions = pool.evictions();
  stats.copied_pages = state_->copied_pages;
  const std::int64_t slots = stats.used_pages * options().page_size;
  if (slots > 0)
    stats.waste = static_cast<double>(slots - pool.filled()) / static_cast<double>(slots);
  return stats;
}

}  // namespace quire
