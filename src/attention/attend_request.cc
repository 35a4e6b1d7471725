// Sequences to layouts, positions to runs. Attention layer.
#include "attention/attend_request.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "attention/forward_request.h"
#include "attention/function_names.h"
#include "attention/validate.h"
#include "cache/kv_cache_state.h"
#include "layout/jagged_layout.h"
#include "layout/paged_layout.h"
#include "mask/block_rows.h"
#include "mask/sequence_masks.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

// Up to so many queries the kernels ask the mask of all keys: that costs less than reading those a
// proof would skip, and nothing when the step is planned.
constexpr std::int64_t kAskedQueries = 8;

// The sequences of a step.
struct Step {
  layout::JaggedRows queries;
  std::vector<layout::PageRow> pages;
  std::vector<std::int64_t> q_begin, kv_length, first;  // first: of the keys that are there
  std::int64_t longest_q = 0, longest_kv = 0, tokens = 0;
  bool has_released = false;
};

Step read_step(const KVCache& cache, std::span<const NewTokens> tokens) {
  Step step;
  for (std::vector<std::int64_t>* each :
       {&step.queries.begin, &step.queries.length, &step.q_begin, &step.kv_length, &step.first})
    each->reserve(tokens.size());
  step.pages.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    cache.state().get(names::kAttend, tokens[i].sequence);
    const SequenceView view = cache.view(tokens[i].sequence);
    const std::int64_t count = tokens[i].count;
    if (count < 0 || count > view.length) {
      fail(ErrorKind::value, names::kAttend,
           "sequence {} of the step has {} tokens; got a count of {}", i, view.length, count);
    }
    step.queries.begin.push_back(step.tokens);
    step.queries.length.push_back(count);
    step.pages.push_back({.pages = view.pages.data(), .length = view.length});
    step.q_begin.push_back(view.length - count);
    step.kv_length.push_back(view.length);
    step.first.push_back(view.begin);
    step.has_released |= view.begin > 0;
    step.tokens += count;
    step.longest_q = std::max(step.longest_q, count);
    step.longest_kv = std::max(step.longest_kv, view.length);
  }
  return step;
}

[[noreturn]] void fail_released(std::size_t i, std::int64_t first) {
  fail(ErrorKind::value, names::kAttend,
       "sequence {} of the step has released its keys before {}, and a query may see them", i,
       first);
}

// Keys that are gone must be hidden: by the window, or by a proof about the mask.
void check_released(const Step& step, std::int64_t heads, const AttendOptions& options) {
  if (!step.has_released) return;
  std::vector<std::int64_t> queries = step.queries.length;
  for (std::size_t i = 0; i < step.first.size(); ++i) {
    const bool asks = step.first[i] > 0 && queries[i] > 0;
    if (!asks) queries[i] = 0;
    if (!asks || options.mask_mod.has_value()) continue;
    if (options.window == 0 || step.q_begin[i] - options.window + 1 < step.first[i])
      fail_released(i, step.first[i]);
  }
  if (!options.mask_mod.has_value()) return;
  const mask::SequenceMasks gone = mask::create_sequence_masks(
      names::kAttend, *options.mask_mod, heads,
      {.q = queries, .kv = step.first, .q_begin = step.q_begin}, {.executor = options.executor});
  for (std::size_t i = 0; i < step.first.size(); ++i) {
    const BlockMask& mask = gone.masks[static_cast<std::size_t>(gone.which[i])];
    if (mask.block_rows().stored_runs() > 0) fail_released(i, step.first[i]);
  }
}

void set_rule(plan::ForwardRequest& request, const Step& step, const AttendOptions& options) {
  if (!options.mask_mod.has_value()) {
    request.positions = plan::PositionRule{
        .rule = options.window > 0 ? mods::sliding_window(options.window) : mods::causal(),
        .is_causal = true,
        .window = options.window,
        .first = step.first};
  } else if (step.longest_q <= kAskedQueries) {
    request.positions = plan::PositionRule{.rule = *options.mask_mod, .first = step.first};
  } else {
    mask::SequenceMasks made = mask::create_sequence_masks(
        names::kAttend, *options.mask_mod, request.q_heads,
        {.q = step.queries.length, .kv = step.kv_length, .q_begin = step.q_begin},
        {.executor = options.executor});
    request.block_mask = {*options.mask_mod, std::move(made.masks), std::move(made.which)};
  }
}

}  // namespace

plan::ForwardRequest attend_request(const KVCache& cache, std::span<const NewTokens> tokens,
                                    const AttendQueries& queries, const AttendOptions& options) {
  const KVCacheOptions& sizes = cache.options();
  if (queries.q_heads < 1 || queries.q_heads % sizes.kv_heads != 0) {
    fail(ErrorKind::value, names::kAttend,
         "q_heads must be a multiple of the cache's {} kv_heads; got {}", sizes.kv_heads,
         queries.q_heads);
  }
  if (!is_floating(queries.dtype))
    fail(ErrorKind::type, names::kAttend, "q must be f32, f64, bf16 or f16; got {}",
         dtype_name(queries.dtype));
  if (options.scale.has_value() && !std::isfinite(*options.scale))
    fail(ErrorKind::value, names::kAttend, "scale must be finite; got {}", *options.scale);
  if (options.window < 0)
    fail(ErrorKind::value, names::kAttend, "window must not be negative; got {}", options.window);
  if (options.window > 0 && options.mask_mod.has_value())
    fail(ErrorKind::value, names::kAttend, "give mask_mod or window, not both");
  Step step = read_step(cache, tokens);
  const AttentionShape shape{.batch = static_cast<std::int64_t>(tokens.size()),
                             .q_heads = queries.q_heads,
                             .q_len = step.longest_q,
                             .head_dim = sizes.head_dim,
                             .kv_batch = static_cast<std::int64_t>(tokens.size()),
                             .kv_heads = sizes.kv_heads,
                             .kv_len = step.longest_kv,
                             .v_head_dim = sizes.v_head_dim,
                             .q_dtype = queries.dtype,
                             .k_dtype = sizes.dtype,
                             .v_dtype = sizes.dtype};
  const FlexAttentionOptions dense{.score_mod = options.score_mod,
                                   .scale = options.scale,
                                   .enable_gqa = true,
                                   .executor = options.executor};
  validate(names::kAttend, shape, dense);
  check_released(step, queries.q_heads, options);
  plan::ForwardRequest request = forward_request(shape, dense);
  set_rule(request, step, options);
  if (!step.q_begin.empty()) request.q_begin = std::move(step.q_begin);
  request.queries = std::make_shared<layout::JaggedQueries>(std::move(step.queries));
  request.layout =
      std::make_shared<layout::PagedLayout>(sizes.page_size, false, std::move(step.pages));
  return request;
}

}  // namespace quire::attention
