// A problem of the newest tokens of sequences over a KVCache: page tables are read where they lie,
// masks follow from positions where they can. Attention layer.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attention/validate.h"
#include "cache/kv_cache_state.h"
#include "layout/jagged_layout.h"
#include "layout/paged_layout.h"
#include "mask/block_rows.h"
#include "mask/sequence_masks.h"
#include "quire/attend.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

// Up to this many queries the kernels evaluate the mask for all keys: cheaper than the keys that a
// proof would skip, and planning the step costs nothing.
constexpr std::int64_t kAskedQueries = 8;

// The sequences of a step.
struct Step {
  layout::JaggedRows queries;
  std::vector<layout::PageRow> pages;
  std::vector<std::int64_t> q_begin, first;  // first: of the keys that are there
  std::int64_t longest_q = 0, longest_kv = 0, tokens = 0;
  bool has_released = false;
};

Step read_step(const char* where, const KVCache& cache, std::span<const NewTokens> tokens) {
  Step step;
  for (std::vector<std::int64_t>* each :
       {&step.queries.begin, &step.queries.length, &step.q_begin, &step.first})
    each->reserve(tokens.size());
  step.pages.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    cache.state().get(where, tokens[i].sequence);
    const SequenceView view = cache.view(tokens[i].sequence);
    const std::int64_t count = tokens[i].count;
    if (count < 0 || count > view.length) {
      fail(ErrorKind::value, where, "sequence {} of the step has {} tokens; got a count of {}", i,
           view.length, count);
    }
    step.queries.begin.push_back(step.tokens);
    step.queries.length.push_back(count);
    step.pages.push_back({.pages = view.pages.data(), .length = view.length});
    step.q_begin.push_back(view.length - count);
    step.first.push_back(view.begin);
    step.has_released |= view.begin > 0;
    step.tokens += count;
    step.longest_q = std::max(step.longest_q, count);
    step.longest_kv = std::max(step.longest_kv, view.length);
  }
  return step;
}

[[noreturn]] void fail_released(const char* where, std::size_t i, std::int64_t first) {
  fail(ErrorKind::value, where,
       "sequence {} of the step has released its keys before {}, and a query may see them", i,
       first);
}

// Keys that are gone must be hidden: by the window, or by a proof about the mask.
void check_released(const char* where, const Step& step, std::int64_t heads,
                    const AttentionOptions& options) {
  if (!step.has_released) return;
  std::vector<std::int64_t> queries = step.queries.length;
  for (std::size_t i = 0; i < step.first.size(); ++i) {
    const bool asks = step.first[i] > 0 && queries[i] > 0;
    if (!asks) queries[i] = 0;
    if (!asks || options.mask_mod.has_value()) continue;
    if (options.window == 0 || step.q_begin[i] - options.window + 1 < step.first[i])
      fail_released(where, i, step.first[i]);
  }
  if (!options.mask_mod.has_value()) return;
  const mask::SequenceMasks gone = mask::create_sequence_masks(
      where, *options.mask_mod, heads, {.q = queries, .kv = step.first, .q_begin = step.q_begin},
      {.executor = options.executor});
  for (std::size_t i = 0; i < step.first.size(); ++i) {
    const BlockMask& mask = gone.masks[gone.which[i]];
    if (mask.block_rows().stored_runs() > 0) fail_released(where, i, step.first[i]);
  }
}

void check_options(const char* where, const KVCacheOptions& sizes, const AttendQueries& queries,
                   const AttentionOptions& options) {
  if (queries.q_heads < 1 || queries.q_heads % sizes.kv_heads != 0) {
    fail(ErrorKind::value, where, "q_heads must be a multiple of the cache's {} kv_heads; got {}",
         sizes.kv_heads, queries.q_heads);
  }
  attention::check_float(where, "q", queries.dtype);
  if (options.window < 0)
    fail(ErrorKind::value, where, "window must not be negative; got {}", options.window);
  if (options.window > 0 && options.mask_mod.has_value())
    fail(ErrorKind::value, where, "give mask_mod or window, not both");
  if (options.block_mask.has_value())
    fail(ErrorKind::value, where, "a step has no block_mask; give mask_mod");
  if (!options.q_begin.empty())
    fail(ErrorKind::value, where, "q_begin follows from the cache; do not give it");
}

// Each token sees itself and those before it, or the mask mod decides for every key. With more
// queries the mask is proved, as in other calls.
std::optional<PositionRule> position_rule(const Step& step, const AttentionOptions& options) {
  if (!options.mask_mod.has_value()) {
    return PositionRule{
        .rule = options.window > 0 ? mods::sliding_window(options.window) : mods::causal(),
        .is_causal = true,
        .window = options.window,
        .first = step.first};
  }
  if (step.longest_q > kAskedQueries) return std::nullopt;
  return PositionRule{.rule = *options.mask_mod, .first = step.first};
}

}  // namespace

AttentionProblem AttentionProblem::step(const KVCache& cache, std::span<const NewTokens> tokens,
                                        const AttendQueries& queries,
                                        const AttentionOptions& options, const char* function) {
  const FloatEnv float_env;
  const KVCacheOptions& sizes = cache.options();
  check_options(function, sizes, queries, options);
  Step step = read_step(function, cache, tokens);
  check_released(function, step, queries.q_heads, options);
  const std::int64_t batch = tokens.size();
  AttentionProblem problem{{.batch = batch,
                            .q_heads = queries.q_heads,
                            .q_len = step.longest_q,
                            .head_dim = sizes.head_dim,
                            .kv_batch = batch,
                            .kv_heads = sizes.kv_heads,
                            .kv_len = step.longest_kv,
                            .v_head_dim = sizes.v_head_dim,
                            .q_dtype = queries.dtype,
                            .k_dtype = sizes.dtype,
                            .v_dtype = sizes.dtype},
                           options,
                           function};
  problem.cache = &cache.state();
  problem.cache_version = cache.version();
  problem.enable_gqa = true;
  problem.q_begin = std::move(step.q_begin);
  problem.positions = position_rule(step, options);
  if (problem.positions.has_value()) problem.mask_mod.reset();
  problem.q_shape = {step.tokens, queries.q_heads, sizes.head_dim};
  problem.k_shape = {sizes.n_pages, sizes.kv_heads, sizes.page_size, sizes.head_dim};
  problem.v_shape = {sizes.n_pages, sizes.kv_heads, sizes.page_size, sizes.v_head_dim};
  problem.queries = std::make_shared<layout::JaggedQueries>(std::move(step.queries));
  problem.layout =
      std::make_shared<layout::PagedLayout>(sizes.page_size, false, std::move(step.pages));
  return problem;
}

}  // namespace quire
