// From sizes to tasks, and from tensors to kernels. Plan layer.
#include "plan/forward_plan.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "formula/compile/compile.h"
#include "formula/first_fault.h"
#include "kernels/dispatch.h"
#include "plan/forward_call.h"
#include "plan/one_channel.h"
#include "plan/seen_tiles.h"
#include "runtime/ceil_div.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

using kernels::kQueryTile;

namespace {

layout::KeyStrides key_strides(const ForwardTensors& tensors) {
  const auto& k = tensors.k.strides();
  const auto& v = tensors.v.strides();
  return {k[0], k[1], k[2], v[0], v[1], v[2]};
}

}  // namespace

ForwardPlan::ForwardPlan(AttentionProblem problem)
    : request_(std::move(problem)), table_(&kernels::current_table()) {
  request_.head_dim = std::max<std::int64_t>(request_.head_dim, 1);  // one_channel.h
  find_visible();
  work_ = make_tasks(request_, visible_.get(),
                     static_cast<std::int64_t>(request_.executor->concurrency()));
  compile_programs();
  allocate_scratch();
  for (const std::optional<Formula>* formula : {&request_.score, &mask_formula_})
    if (formula->has_value())
      std::ranges::copy((*formula)->buffers(), std::back_inserter(buffers_));
}

void ForwardPlan::find_visible() {
  const MaskMod* rule = nullptr;
  if (request_.block_mask.has_value()) {
    visible_ =
        std::make_unique<BlockMaskKeys>(request_.block_mask, request_.q_len, request_.kv_len);
    rule = &request_.block_mask.mask_mod();
  } else if (request_.visible != nullptr) {
    visible_ = request_.visible;
    if (request_.visible_rule.has_value()) rule = &*request_.visible_rule;
  }
  if (rule != nullptr) mask_formula_ = rule_to_evaluate(*rule);
}

std::size_t ForwardPlan::scratch_bytes() const {
  return static_cast<std::size_t>(scratch_.numel()) +
         static_cast<std::size_t>(states_.numel()) * dtype_size(states_.dtype());
}

std::int64_t ForwardPlan::queries() const {
  std::int64_t queries = 0;
  for (std::int64_t b = 0; b < request_.batch; ++b) queries += request_.queries->length(b);
  return queries;
}

ForwardPlan::Rows ForwardPlan::rows_of(const ForwardTensors& tensors, std::int64_t b,
                                       std::int64_t h) const {
  const auto& q = tensors.q.strides();
  const auto& out = tensors.out.strides();
  const auto [batch, row] = request_.queries->place(b);
  const std::int64_t rows = tensors.out.dim(2);
  return {.q = batch * q[0] + h * q[1] + row * q[2],
          .out = batch * out[0] + h * out[1] + row * out[2],
          .stat = tensors.stats_by_row ? (batch * rows + row) * request_.q_heads + h
                                       : (batch * request_.q_heads + h) * rows + row};
}

void ForwardPlan::compile_programs() {
  using kernels::Vary;
  formula::CompileOptions options = compile_options(request_, kernels::kTileKeys);
  const Formula* score = request_.score ? &*request_.score : nullptr;
  const Formula* mask = mask_formula_ ? &*mask_formula_ : nullptr;
  if (work_.has_prefill) {
    if (score != nullptr) prefill_score_ = formula::compile({.score_mod = score}, options);
    if (mask != nullptr)
      prefill_mask_ = formula::compile({.mask_mod = mask, .mask_only = true}, options);
  }
  // The row kernel uses these too.
  if (!work_.prefixes.empty()) options.vary[0] = Vary::kRowList;
  options.vary[1] = Vary::kRowList;
  options.vary[2] = Vary::kRowList;
  options.vary[3] = Vary::kLaneRange;
  options.max_rows = kernels::kDecodeRows;
  options.groups = kernels::kTileKeys / kernels::kGroupLanes;
  options.max_per_row = true;
  if (score != nullptr) decode_score_ = formula::compile({.score_mod = score}, options);
  if (mask != nullptr)
    decode_mask_ = formula::compile({.mask_mod = mask, .mask_only = true}, options);
}

void ForwardPlan::allocate_scratch() {
  const std::size_t workers = request_.executor->concurrency();
  const kernels::ForwardCall call = make_call({});
  std::size_t bytes = 0;
  if (work_.has_prefill) bytes = kernels::prefill_scratch_bytes(call, work_.most_tiles);
  if (work_.has_decode)
    bytes = std::max(bytes, kernels::decode_scratch_bytes(call, kernels::kDecodeRows));
  scratch_step_ = (bytes + 4095) / 4096 * 4096 + 64 * 5;  // workers' memory in other sets of caches
  scratch_ = Tensor::empty({static_cast<std::int64_t>(scratch_step_ * workers)}, DType::u8);
  spans_.resize(workers *
                static_cast<std::size_t>(std::max<std::int64_t>(request_.layout->max_spans(), 1)));
  faults_.resize(workers);
  if (work_.state_elements > 0) states_ = Tensor::empty({work_.state_elements}, compute_type());
}

kernels::ForwardCall ForwardPlan::make_call(const ForwardTensors& tensors) const {
  kernels::ForwardCall call = call_of(request_, *table_);
  const auto pointer = [](const std::optional<kernels::TileProgram>& program) {
    return program.has_value() ? &*program : nullptr;
  };
  call.prefill = {pointer(prefill_score_), pointer(prefill_mask_)};
  call.decode = {pointer(decode_score_), pointer(decode_mask_)};
  if (tensors.q.rank() != 4) return call;  // only to size scratch
  call.q = tensors.q.data();
  call.k = tensors.k.data();
  call.v = tensors.v.data();
  call.out = tensors.out.data();
  call.lse = tensors.lse;
  call.max_scores = tensors.max_scores;
  call.stat_step = tensors.stats_by_row ? request_.q_heads : 1;
  call.q_rows = steps_of(tensors.q);
  call.k_rows = steps_of(tensors.k);
  call.v_rows = steps_of(tensors.v);
  call.out_rows = steps_of(tensors.out);
  return call;
}

void* ForwardPlan::scratch(std::size_t worker) {
  return static_cast<std::uint8_t*>(scratch_.data()) + worker * scratch_step_;
}

kernels::KeySequence ForwardPlan::write_keys(const ForwardTask& task, layout::KeyRange range,
                                             const ForwardTensors& tensors, std::size_t worker) {
  const std::size_t most = spans_.size() / faults_.size();
  kernels::KeySpan* const spans = spans_.data() + worker * most;
  const std::int64_t count = request_.layout->write_spans(task.b, task.kv_head, range,
                                                          key_strides(tensors), {spans, most});
  return {spans, count, request_.layout->length(task.b)};
}

void ForwardPlan::run_prefill(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                              const ForwardTask& task, std::size_t worker) {
  kernels::QueryTile tiles[kernels::kMaxQueryTiles];
  const std::int64_t q_len = request_.queries->length(task.b);
  const std::int64_t q_tiles = ceil_div(q_len, kQueryTile);
  SeenTiles seen(request_.layout->length(task.b));
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t h = task.kv_head * request_.group() + (task.first + i) / q_tiles;
    const std::int64_t tile = (task.first + i) % q_tiles, row = tile * kQueryTile;
    const Rows rows = rows_of(tensors, task.b, h);
    kernels::QueryTile& to = tiles[i];
    to = {.b = request_.b_of(task.b),
          .h = h,
          .q_idx = request_.begin_of(task.b) + row,
          .q_offset = rows.q + row * call.q_rows.row_step,
          .out_offset = rows.out + row * call.out_rows.row_step,
          .stat_offset = rows.stat + row * call.stat_step,
          .queries = static_cast<int>(std::min<std::int64_t>(kQueryTile, q_len - row))};
    if (visible_ == nullptr) {
      seen.add({nullptr, -1});
      continue;
    }
    const std::span<const kernels::LaneRuns> runs = visible_->tile(task.b, h, tile);
    to.visible = runs.data();
    to.visible_count = static_cast<int>(runs.size());
    for (const kernels::LaneRuns& lanes : runs) seen.add(lanes.visible);
  }
  kernels::prefill(call,
                   {.keys = write_keys(task, seen.range(), tensors, worker),
                    .tiles = tiles,
                    .tile_count = static_cast<int>(task.count)},
                   scratch(worker), faults_[worker]);
}

void ForwardPlan::fill_rows(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            const ForwardTask& task, kernels::QueryRow* to) const {
  const std::int64_t q_len = request_.queries->length(task.b);
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t h = task.kv_head * request_.group() + (task.first + i) / q_len;
    const std::int64_t row = (task.first + i) % q_len;
    const Rows rows = rows_of(tensors, task.b, h);
    to[i] = {.b = request_.b_of(task.b),
             .h = h,
             .q_idx = request_.begin_of(task.b) + row,
             .q_offset = rows.q + row * call.q_rows.row_step,
             .out_offset = rows.out + row * call.out_rows.row_step,
             .stat_offset = rows.stat + row * call.stat_step,
             .visible = {nullptr, -1}};
    if (visible_ != nullptr) to[i].visible = visible_->row(task.b, h, row);
  }
}

// By rows of one sequence, or what all of these have of it.
layout::KeyRange ForwardPlan::seen_by(std::int64_t sequence,
                                      std::span<const kernels::QueryRow> rows) const {
  SeenTiles seen(request_.layout->length(sequence));
  for (const kernels::QueryRow& row : rows) seen.add(row.visible);
  return seen.range();
}

kernels::DecodePrefix ForwardPlan::prefix_of(const ForwardTask& task) const {
  if (task.prefix_states < 0) return {};
  const auto size = static_cast<std::int64_t>(dtype_size(compute_type()));
  return {.states = static_cast<const char*>(states_.data()) + task.prefix_states * size,
          .step = task.prefix_step,
          .tiles = task.prefix_tiles};
}

// The rows of all members over the keys they share, to states.
void ForwardPlan::run_prefix(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const PrefixTask& task, std::size_t worker) {
  const SharedPrefix& prefix = work_.shared.prefixes[static_cast<std::size_t>(task.prefix)];
  kernels::QueryRow rows[kernels::kDecodeRows];
  ForwardTask of{.kernel = Kernel::kDecode, .kv_head = task.kv_head};
  std::int64_t count = 0;
  for (std::int64_t m = prefix.first; m < prefix.first + prefix.count; ++m, count += of.count) {
    of.b = work_.shared.members[static_cast<std::size_t>(m)];
    of.count = static_cast<std::int32_t>(request_.group() * request_.queries->length(of.b));
    fill_rows(call, tensors, of, rows + count);
  }
  of.b = work_.shared.members[static_cast<std::size_t>(prefix.first)];
  const layout::KeyRange range{
      task.split_begin * kernels::kSplitKeys,
      std::min(prefix.tiles * kernels::kTileKeys, task.split_end * kernels::kSplitKeys)};
  kernels::KeySequence keys = write_keys(of, range, tensors, worker);
  keys.length = prefix.tiles * kernels::kTileKeys;
  const auto size = static_cast<std::int64_t>(dtype_size(compute_type()));
  kernels::decode(call,
                  {.keys = keys,
                   .rows = rows,
                   .row_count = static_cast<int>(count),
                   .split_begin = task.split_begin,
                   .split_end = task.split_end,
                   .states = static_cast<char*>(states_.data()) + task.states * size},
                  scratch(worker), faults_[worker]);
}

void ForwardPlan::run_decode(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const ForwardTask& task, std::size_t worker) {
  kernels::QueryRow rows[kernels::kDecodeRows];
  fill_rows(call, tensors, task, rows);
  layout::KeyRange range = seen_by(task.b, {rows, static_cast<std::size_t>(task.count)});
  if (task.states >= 0) {
    range.begin = std::max(range.begin, task.split_begin * kernels::kSplitKeys);
    range.end = std::min(range.end, task.split_end * kernels::kSplitKeys);
  }
  auto* const states = static_cast<char*>(states_.data());
  const auto size = static_cast<std::int64_t>(dtype_size(compute_type()));
  kernels::decode(call,
                  {.keys = write_keys(task, range, tensors, worker),
                   .rows = rows,
                   .row_count = static_cast<int>(task.count),
                   .split_begin = task.split_begin,
                   .split_end = task.split_end,
                   .states = task.states < 0 ? nullptr : states + task.states * size,
                   .prefix = prefix_of(task)},
                  scratch(worker), faults_[worker]);
}

void ForwardPlan::run_merge(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            const ForwardTask& task, std::size_t worker) {
  kernels::QueryRow rows[kernels::kDecodeRows];
  fill_rows(call, tensors, task, rows);
  const auto size = static_cast<std::int64_t>(dtype_size(compute_type()));
  const layout::KeyRange range = seen_by(task.b, {rows, static_cast<std::size_t>(task.count)});
  kernels::merge_splits(call,
                        {.keys = write_keys(task, range, tensors, worker),
                         .rows = rows,
                         .row_count = static_cast<int>(task.count),
                         .split_begin = task.split_begin,
                         .split_end = task.split_end,
                         .prefix = prefix_of(task)},
                        static_cast<const char*>(states_.data()) + task.states * size,
                        task.split_end - task.split_begin, scratch(worker), faults_[worker]);
}

// Short sequences are over before the memory of the next one has come: it is asked for two tasks
// ahead (the hardware's own prefetchers stop at pages, which such a sequence hardly fills), into
// L2, which can wait for more lines than L1. 16 keys of 64 dims: 0.27 of the peak, without 0.18.
void ForwardPlan::prefetch(const ForwardTensors& tensors, std::size_t i) const {
  constexpr std::int64_t kMostBytes = 16384;
  if (i >= work_.tasks.size() || request_.layout->max_spans() != 1) return;
  const ForwardTask& task = work_.tasks[i];
  const auto ask = [](const auto& view, std::int64_t offset, std::int64_t rows, auto is_written) {
    const auto size = static_cast<std::int64_t>(dtype_size(view.dtype()));
    const std::int64_t row = view.dim(3) * size, step = view.strides()[2] * size;
    if (rows * row > kMostBytes || view.strides()[3] != 1) return;
    const char* const at = static_cast<const char*>(view.data()) + offset * size;
    const std::int64_t runs = step == row ? 1 : rows, bytes = step == row ? rows * row : row;
    for (std::int64_t run = 0; run < runs; ++run)
      for (std::int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(at + run * step + line, decltype(is_written)::value, 2);
  };
  const Rows rows = rows_of(tensors, task.b, task.kv_head * request_.group());
  ask(tensors.q, rows.q, request_.queries->length(task.b), std::false_type());
  ask(tensors.out, rows.out, request_.queries->length(task.b), std::true_type());
  const std::int64_t length = request_.layout->length(task.b);
  kernels::KeySpan span;
  if (request_.layout->write_spans(task.b, task.kv_head, {0, length}, key_strides(tensors),
                                   {&span, 1}) == 0)
    return;
  ask(tensors.k, span.key_offset, span.end, std::false_type());
  ask(tensors.v, span.value_offset, span.end, std::false_type());
}

void ForwardPlan::run_claim(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            std::size_t claim, std::size_t worker) {
  const auto begin = static_cast<std::size_t>(work_.claims[claim]);
  const auto end = static_cast<std::size_t>(work_.claims[claim + 1]);
  const std::size_t ahead = 2 * (end - begin > 1 ? 1 : faults_.size());
  for (std::size_t i = begin; i < end; ++i) {
    prefetch(tensors, i + ahead);
    if (work_.tasks[i].kernel == Kernel::kPrefill)
      run_prefill(call, tensors, work_.tasks[i], worker);
    else
      run_decode(call, tensors, work_.tasks[i], worker);
  }
}

void ForwardPlan::run(const ForwardTensors& tensors) {
  if (tensors.q.dim(3) == 0) {
    ForwardTensors some = tensors;
    some.q = with_channel(tensors.q);
    some.k = with_channel(tensors.k);
    return run(some);
  }
  const kernels::ForwardCall call = make_call(tensors);
  std::fill(faults_.begin(), faults_.end(), kernels::TileFault());
  if (!work_.prefixes.empty()) {
    run_parallel(*request_.executor, work_.prefixes.size(), [&](std::size_t i, std::size_t worker) {
      run_prefix(call, tensors, work_.prefixes[i], worker);
    });
  }
  run_parallel(
      *request_.executor, work_.claims.size() - 1,
      [&](std::size_t claim, std::size_t worker) { run_claim(call, tensors, claim, worker); });
  if (!work_.merges.empty()) {
    run_parallel(*request_.executor, work_.merges.size(), [&](std::size_t i, std::size_t worker) {
      run_merge(call, tensors, work_.merges[i], worker);
    });
  }
  formula::throw_first_fault(faults_);
}

}  // namespace quire::plan
