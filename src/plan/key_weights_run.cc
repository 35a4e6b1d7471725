// The weights of keys after a run: for sequences with one query from the scores that the walk kept,
// for others by a second pass over the keys, which reads no values. Plan layer.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/attention_order.h"
#include "kernels/key_weights.h"
#include "kernels/typed_functions.h"
#include "layout/chosen_keys.h"
#include "plan/forward_call.h"
#include "plan/forward_plan.h"
#include "runtime/ceil_div.h"
#include "runtime/cpu_info.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

using kernels::kQueryTile;
using kernels::kSplitKeys;

namespace {

// Queries [begin, end) of a sequence with `length` queries.
QueryRange range_in(const QueryRange& given, std::int64_t length) {
  const auto place = [length](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + length : at, 0, length);
  };
  return {place(given.begin), place(given.end)};
}

// The sum of 16 partial sums.
template <class T>
T tree_sum(const T* partial) {
  T sums[kernels::kPartialSums];
  std::copy_n(partial, kernels::kPartialSums, sums);
  for (int half = kernels::kPartialSums / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

}  // namespace

// Whether a sequence's scores are kept while it is walked.
bool ForwardPlan::keeps_scores(std::int64_t b) const { return request_.queries->length(b) == 1; }

// Where the weights of a head's keys begin, in elements.
std::int64_t ForwardPlan::weights_place(const KeyWeightsOutput& to, std::int64_t b,
                                        std::int64_t h) const {
  if (!to.is_packed) return b * to.batch_step + h * to.head_step;
  kernels::KeySpan span;  // a jagged layout has one
  const std::int64_t count = request_.layout->write_spans(b, 0, {0, request_.layout->length(b)},
                                                          {.k_row = to.key_step}, {&span, 1});
  return (count == 0 ? 0 : span.key_offset) + h * to.head_step;
}

// Allocates what a run without weights does not need.
void ForwardPlan::allocate_weights(const ForwardTensors& tensors) {
  const std::int64_t rows = element_count(request_.stats_shape());
  if (row_states_.numel() != 2 * rows) row_states_ = Tensor::empty({2 * rows}, compute_type());
  bool keeps_any = false, passes_any = false;  // a sequence without queries takes a pass, too
  for (std::int64_t b = 0; b < request_.batch; ++b)
    (keeps_scores(b) ? keeps_any : passes_any) = true;
  if (keeps_any && !weighs_in_place(tensors)) {
    const std::int64_t numbers = request_.batch * request_.q_heads * request_.kv_len;
    if (kept_scores_.numel() != numbers) kept_scores_ = Tensor::empty({numbers}, compute_type());
  }
  if (!passes_any) return;
  compile_prefill();
  const kernels::ForwardCall call = make_call();
  const int tiles = weights_tiles();
  const std::size_t size = dtype_size(compute_type());
  weights_scratch_step_ =
      (kernels::prefill_scratch_bytes(call, tiles) + 4095) / 4096 * 4096 +
      (kSplitKeys * kernels::kPanel + kernels::kMaxQueryTiles * kQueryTile) * size + 64 * 5;
  const auto workers = static_cast<std::int64_t>(request_.executor->concurrency());
  const std::int64_t bytes = static_cast<std::int64_t>(weights_scratch_step_) * workers;
  if (weights_scratch_.numel() != bytes) weights_scratch_ = Tensor::empty({bytes}, DType::u8);
  if (tensors.entropy == nullptr) return;
  const std::int64_t splits = ceil_div(request_.kv_len, kSplitKeys);
  if (entropy_parts_.numel() != rows * splits)
    entropy_parts_ = Tensor::empty({rows * splits}, compute_type());
}

// Whether scores are kept in the memory where the weights go.
bool ForwardPlan::weighs_in_place(const ForwardTensors& tensors) {
  return tensors.key_weights.data != nullptr && tensors.key_weights.key_step == 1;
}

void* ForwardPlan::kept_scores(const ForwardTensors& tensors, std::int64_t b, std::int64_t h) {
  const bool in_place = weighs_in_place(tensors);
  const std::int64_t at = in_place ? weights_place(tensors.key_weights, b, h)
                                   : (b * request_.q_heads + h) * request_.kv_len;
  return static_cast<char*>(in_place ? tensors.key_weights.data : kept_scores_.data()) +
         at * static_cast<std::int64_t>(dtype_size(compute_type()));
}

kernels::WeightRule ForwardPlan::weight_rule() const { return weight_rule_of(request_); }

int ForwardPlan::weights_tiles() const {
  return kernels::query_tiles_per_item(static_cast<int>(request_.head_dim),
                                       static_cast<int>(request_.v_head_dim), l2_cache_bytes());
}

// What a sink adds to a row's sum, in the units of the keys' weights: e^(sink - m), or infinity
// where keys weigh nothing beside it. `distance`: sink - m in natural units.
template <class T>
T ForwardPlan::sink_weight(T distance) const {
  constexpr T kMost = std::is_same_v<T, double> ? T{700} : T{80};
  if (distance > kMost) return std::numeric_limits<T>::infinity();
  return kernels::decode_functions<T>(*table_).exp2(distance * static_cast<T>(kernels::kLog2e));
}

// Adds the sinks of a head to the sums of its rows. A row that sees nothing stays 0.
template <class T>
void ForwardPlan::add_sinks(const ForwardTensors& tensors, std::int64_t b, std::int64_t h) {
  const Rows rows = rows_of(tensors, b, h);
  const std::int64_t step = tensors.stats_by_row ? request_.q_heads : 1;
  T* const sums = static_cast<T*>(row_states_.data()) + row_states_.numel() / 2;
  for (std::int64_t row = 0; row < request_.queries->length(b); ++row) {
    const std::int64_t at = rows.stat + row * step;
    if (sums[at] != 0) sums[at] += sink_weight(sink_distance<T>(h, at));
  }
}

template <class T>
T ForwardPlan::sink_distance(std::int64_t h, std::int64_t stat) const {
  const T m = static_cast<const T*>(row_states_.data())[stat];
  return static_cast<const T*>(sinks_.data())[h] -
         (is_natural() ? m : m * static_cast<T>(request_.factor));
}

bool ForwardPlan::is_natural() const {
  return request_.score.has_value() || !kernels::is_scaled(request_.factor) ||
         request_.weight_mod.has_value();
}

// The one query of a sequence: turns its scores into weights in place, then moves them to the
// output.
template <class T>
void ForwardPlan::finish_kept(const ForwardTensors& tensors, std::int64_t b, std::int64_t h) {
  const Rows rows = rows_of(tensors, b, h);
  const T* const states = static_cast<const T*>(row_states_.data());
  const std::int64_t keys = request_.layout->length(b);
  const T sum = states[row_states_.numel() / 2 + rows.stat];
  auto* const scores = static_cast<T*>(kept_scores(tensors, b, h));
  const T inverse = kernels::weight_factor(weight_rule(), sum);
  T entropy = 0;
  kernels::forward_functions<T>(*table_).row_weights(
      {.scores = scores,
       .keys = keys,
       .is_formula = weight_rule() != kernels::WeightRule::kSoftmax,
       .exponent_factor = kernels::exponent_factor<T>(is_natural(), request_.factor),
       .m = sum == 0 ? T{0} : states[rows.stat],
       .inverse = inverse,
       .entropy = tensors.entropy == nullptr ? nullptr : &entropy});
  if (tensors.entropy != nullptr)
    static_cast<T*>(tensors.entropy)[rows.stat] = entropy_of(h, rows.stat, entropy);
  const KeyWeightsOutput& to = tensors.key_weights;
  if (to.data == nullptr) return;
  const QueryRange counted = range_in(to.queries, 1);
  const bool counts = counted.begin < counted.end;
  T* const out = static_cast<T*>(to.data) + weights_place(to, b, h);
  for (std::int64_t key = 0; (out != scores || !counts) && key < keys; ++key)
    out[key * to.key_step] = counts ? scores[key] : T{0};
  clear_tail<T>(to, b, h);
}

// log(L) minus the sum of weight * (score - M), in natural units, the sink's included.
template <class T>
T ForwardPlan::entropy_of(std::int64_t h, std::int64_t stat, T weighted) const {
  const T sum = (static_cast<const T*>(row_states_.data()) + row_states_.numel() / 2)[stat];
  if (sum == 0 || std::isinf(sum)) return 0;  // nothing is visible, or only the sink has weight
  T scaled = is_natural() ? weighted : weighted * static_cast<T>(request_.factor);
  if (request_.sinks.has_value()) {
    const T distance = sink_distance<T>(h, stat);
    if (distance > -std::numeric_limits<T>::infinity())
      scaled += distance * sink_weight(distance) / sum;
  }
  return kernels::decode_functions<T>(*table_).log(sum) - scaled;
}

// The keys of one split of one head, for all queries of a sequence that are in the range.
template <class T>
void ForwardPlan::add_weights(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                              const WeightsTask& task, std::size_t worker) {
  const auto [b, h, split] = task;
  const std::int64_t length = request_.layout->length(b), q_len = request_.queries->length(b);
  const std::int64_t begin = split * kSplitKeys, end = std::min(begin + kSplitKeys, length);
  const KeyWeightsOutput& to = tensors.key_weights;
  const QueryRange counted = to.data == nullptr ? QueryRange{0, 0} : range_in(to.queries, q_len);
  const bool all = tensors.entropy != nullptr;
  char* const memory = static_cast<char*>(weights_scratch_.data()) + worker * weights_scratch_step_;
  T* const sums = reinterpret_cast<T*>(memory);
  T* const entropy = sums + kSplitKeys * kernels::kPanel;
  void* const scratch = entropy + kernels::kMaxQueryTiles * kQueryTile;
  std::fill_n(sums, (end - begin) * kernels::kPanel, T{0});
  const std::size_t most = spans_.size() / faults_.size();
  kernels::KeySpan* const spans = spans_.data() + worker * most;
  const std::int64_t count = request_.layout->write_spans(b, h / request_.group(), {begin, end},
                                                          tensors.key_strides(), {spans, most});
  const std::int64_t first_tile = all ? 0 : counted.begin / kQueryTile;
  const std::int64_t end_tile = ceil_div(all ? q_len : counted.end, kQueryTile);
  const std::int64_t splits = ceil_div(request_.kv_len, kSplitKeys);
  for (std::int64_t tile = first_tile; tile < end_tile; tile += weights_tiles()) {
    kernels::QueryTile tiles[kernels::kMaxQueryTiles];
    kernels::LaneRuns lanes[kernels::kMaxQueryTiles][kQueryTile];
    std::uint64_t bits[kernels::kMaxQueryTiles] = {};
    const auto tile_count =
        static_cast<int>(std::min<std::int64_t>(weights_tiles(), end_tile - tile));
    for (int i = 0; i < tile_count; ++i) {
      tiles[i] = tile_of(call, tensors, {b, h, (tile + i) * kQueryTile}, lanes[i]);
      for (int lane = 0; lane < tiles[i].queries; ++lane) {
        const std::int64_t query = (tile + i) * kQueryTile + lane;
        if (query >= counted.begin && query < counted.end) bits[i] |= std::uint64_t{1} << lane;
      }
    }
    kernels::key_weights(
        call,
        {.queries = {.keys = {spans, count, length}, .tiles = tiles, .tile_count = tile_count},
         .key_begin = begin,
         .key_end = end,
         .counted = bits,
         .sums = to.data == nullptr ? nullptr : sums,
         .entropy = all ? entropy : nullptr},
        scratch, faults_[worker]);
    for (int i = 0; all && i < tile_count; ++i)
      for (int lane = 0; lane < tiles[i].queries; ++lane)
        static_cast<T*>(
            entropy_parts_
                .data())[(tiles[i].stat_offset + lane * call.stat_step) * splits + split] =
            entropy[i * kQueryTile + lane];
  }
  if (to.data == nullptr) return;
  T* out = static_cast<T*>(to.data) + weights_place(to, b, h) + begin * to.key_step;
  for (std::int64_t key = 0; key < end - begin; ++key, out += to.key_step)
    *out = tree_sum(sums + key * kernels::kPanel);
}

// Adds up the sums of splits to the entropy of a head's queries.
template <class T>
void ForwardPlan::finish_entropy(const ForwardTensors& tensors, std::int64_t b, std::int64_t h) {
  const Rows rows = rows_of(tensors, b, h);
  const std::int64_t step = tensors.stats_by_row ? request_.q_heads : 1;
  const std::int64_t all = ceil_div(request_.kv_len, kSplitKeys);
  const std::int64_t splits = ceil_div(request_.layout->length(b), kSplitKeys);
  for (std::int64_t row = 0; row < request_.queries->length(b); ++row) {
    const std::int64_t at = rows.stat + row * step;
    T weighted = 0;
    for (std::int64_t split = 0; split < splits; ++split)
      weighted += static_cast<const T*>(entropy_parts_.data())[at * all + split];
    static_cast<T*>(tensors.entropy)[at] = entropy_of(h, at, weighted);
  }
}

template <class T>
void ForwardPlan::run_weights(const kernels::ForwardCall& call, const ForwardTensors& tensors) {
  const std::int64_t heads = request_.q_heads;
  const auto pairs = static_cast<std::size_t>(request_.batch * heads);
  if (request_.sinks.has_value()) {
    run_parallel(*request_.executor, pairs, [&](std::size_t i, std::size_t) {
      const auto pair = static_cast<std::int64_t>(i);
      add_sinks<T>(tensors, pair / heads, pair % heads);
    });
  }
  std::vector<WeightsTask> tasks;
  for (std::int64_t b = 0; b < request_.batch; ++b) {
    if (keeps_scores(b)) continue;
    const std::int64_t splits = ceil_div(request_.layout->length(b), kSplitKeys);
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t split = 0; split < splits; ++split) tasks.push_back({b, h, split});
  }
  run_parallel(*request_.executor, tasks.size(), [&](std::size_t i, std::size_t worker) {
    add_weights<T>(call, tensors, tasks[i], worker);
  });
  run_parallel(*request_.executor, pairs, [&](std::size_t i, std::size_t) {
    const auto b = static_cast<std::int64_t>(i) / heads, h = static_cast<std::int64_t>(i) % heads;
    if (keeps_scores(b)) return finish_kept<T>(tensors, b, h);
    if (tensors.entropy != nullptr) finish_entropy<T>(tensors, b, h);
    clear_tail<T>(tensors.key_weights, b, h);
  });
}

// Clears the places of keys that a shorter sequence does not have.
template <class T>
void ForwardPlan::clear_tail(const KeyWeightsOutput& to, std::int64_t b, std::int64_t h) const {
  if (to.data == nullptr || to.is_packed) return;
  T* const out = static_cast<T*>(to.data) + weights_place(to, b, h);
  for (std::int64_t key = request_.layout->length(b); key < request_.kv_len; ++key)
    out[key * to.key_step] = 0;
}

template void ForwardPlan::run_weights<float>(const kernels::ForwardCall&, const ForwardTensors&);
template void ForwardPlan::run_weights<double>(const kernels::ForwardCall&, const ForwardTensors&);

}  // namespace quire::plan
