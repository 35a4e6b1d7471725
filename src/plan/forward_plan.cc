// From sizes to tasks, and from tensors to kernels. Plan layer.
#include "plan/forward_plan.h"

#include <algorithm>
#include <tuple>

#include "formula/compile.h"
#include "formula/first_fault.h"
#include "formula/simplify.h"
#include "kernels/dispatch.h"
#include "mask/block_rows.h"
#include "runtime/float_env.h"

namespace quire::plan {

using kernels::kQueryTile;
using kernels::kSplitKeys;

namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_true(const Formula& formula) {
  const formula::Node& root = formula.graph()[formula.root()];
  return root.op == Op::kBoolConst && root.bits != 0;
}

kernels::ForwardTensor steps_of(const ConstTensorView& view) {
  return {.dtype = view.dtype(), .row_step = view.strides()[2], .column_step = view.strides()[3]};
}

}  // namespace

ForwardPlan::ForwardPlan(ForwardRequest request)
    : request_(std::move(request)),
      table_(&kernels::current_table()),
      kernel_(choose_kernel(group(), request_.q_len, request_.longest_kv)) {
  const auto is = [&](DType dtype) {
    return request_.q_dtype == dtype || request_.k_dtype == dtype || request_.v_dtype == dtype;
  };
  is_f64_ = is(DType::f64);
  pairs_ = request_.q_dtype == DType::bf16 && request_.k_dtype == DType::bf16 &&
           request_.v_dtype == DType::bf16 && table_->pairs != nullptr;
  natural_ = request_.score_mod.has_value() || !(request_.scale > 0);
  if (request_.block_mask.has_value()) {
    mask_runs_.emplace(*request_.block_mask, request_.longest_kv);
    mask_formula_ = formula::simplify(request_.block_mask->mask_mod().formula(), Precision::kF32);
    if (is_true(*mask_formula_)) mask_formula_.reset();
  }
  compile_programs();
  const auto threads = static_cast<std::int64_t>(request_.executor->concurrency());
  if (kernel_ == Kernel::kPrefill) {
    list_lane_runs();
    make_prefill_tasks(threads);
  } else {
    make_decode_tasks(threads);
  }
  double multiply_adds = 1;
  for (const std::int64_t size : {request_.batch, request_.q_heads, request_.q_len,
                                  request_.longest_kv, request_.head_dim + request_.v_head_dim})
    multiply_adds *= static_cast<double>(size);
  if (is_for_one_thread(multiply_adds))
    tasks_at_once_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(tasks_.size()));
  allocate_scratch();
}

std::size_t ForwardPlan::scratch_bytes() const {
  return static_cast<std::size_t>(scratch_.numel()) +
         static_cast<std::size_t>(states_.numel()) * dtype_size(states_.dtype());
}

std::int64_t ForwardPlan::q_tiles() const { return ceil_div(request_.q_len, kQueryTile); }

std::int64_t ForwardPlan::q_begin(std::int64_t b) const {
  return request_.q_begin.size() == 1 ? request_.q_begin[0]
                                      : request_.q_begin[static_cast<std::size_t>(b)];
}

std::int64_t ForwardPlan::plane(std::int64_t b, std::int64_t h) const {
  return request_.block_mask->block_rows().plane(b, h);
}

void ForwardPlan::compile_programs() {
  using kernels::Vary;
  const auto [least, most] = std::minmax_element(request_.q_begin.begin(), request_.q_begin.end());
  const auto last = [](std::int64_t size) { return std::max<std::int64_t>(size, 1) - 1; };
  formula::CompileOptions options{.precision = is_f64_ ? Precision::kF64 : Precision::kF32,
                                  .extents = {{0, last(request_.batch)},
                                              {0, last(request_.q_heads)},
                                              {*least, *most + last(request_.q_len)},
                                              {0, last(request_.longest_kv)}},
                                  .max_rows = kernels::kTileKeys};
  const Formula* score = request_.score_mod ? &*request_.score_mod : nullptr;
  const Formula* mask = mask_formula_ ? &*mask_formula_ : nullptr;
  if (kernel_ == Kernel::kPrefill) {
    if (score != nullptr) prefill_score_ = formula::compile({.score_mod = score}, options);
    if (mask != nullptr)
      prefill_mask_ = formula::compile({.mask_mod = mask, .mask_only = true}, options);
  }
  // The row kernel uses these too.
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

// For each stored plane and query tile: the rows of blocks it touches and the
// lanes each has.
void ForwardPlan::list_lane_runs() {
  if (!mask_runs_.has_value()) return;
  const mask::BlockRows& rows = request_.block_mask->block_rows();
  const std::int64_t size = request_.block_mask->block_size().q;
  first_lane_runs_.push_back(0);
  for (std::int64_t plane = 0; plane < rows.planes(); ++plane) {
    for (std::int64_t begin = 0; begin < request_.q_len; begin += kQueryTile) {
      const std::int64_t end = std::min<std::int64_t>(begin + kQueryTile, request_.q_len);
      for (std::int64_t row = begin / size; row * size < end; ++row) {
        lane_runs_.push_back(
            {.lane_begin = static_cast<int>(std::max(row * size - begin, std::int64_t{0})),
             .lane_end = static_cast<int>(std::min((row + 1) * size, end) - begin),
             .visible = mask_runs_->row(plane, row)});
      }
      first_lane_runs_.push_back(static_cast<std::int64_t>(lane_runs_.size()));
    }
  }
}

void ForwardPlan::make_prefill_tasks(std::int64_t threads) {
  const std::int64_t tiles = group() * q_tiles();
  tiles_per_item_ =
      tiles_per_item(request_.batch * request_.kv_heads * tiles,
                     kernels::query_tiles_per_item(static_cast<int>(request_.head_dim),
                                                   static_cast<int>(request_.v_head_dim)),
                     threads);
  const auto visible_keys = [&](std::int64_t b, std::int64_t kv_head, std::int64_t tile) {
    if (!mask_runs_.has_value()) return request_.layout->length(b);
    const std::int64_t h = kv_head * group() + tile / q_tiles();
    const std::int64_t row = tile % q_tiles() * kQueryTile / request_.block_mask->block_size().q;
    return mask_runs_->visible_keys(plane(b, h), row);
  };
  for (std::int64_t b = 0; b < request_.batch; ++b) {
    for (std::int64_t kv_head = 0; kv_head < request_.kv_heads; ++kv_head) {
      for (std::int64_t first = 0; first < tiles; first += tiles_per_item_) {
        Task task{.b = b, .kv_head = kv_head, .first = first};
        task.count = std::min<std::int64_t>(tiles_per_item_, tiles - first);
        for (std::int64_t i = first; i < first + task.count; ++i)
          task.work += visible_keys(b, kv_head, i);
        tasks_.push_back(task);
      }
    }
  }
  // Long ones first, so that threads end together; among equals, in order.
  std::sort(tasks_.begin(), tasks_.end(), [](const Task& x, const Task& y) {
    return std::tie(y.work, x.b, x.kv_head, x.first) < std::tie(x.work, y.b, y.kv_head, y.first);
  });
  if (!tasks_.empty())
    tasks_at_once_ =
        tasks_at_once(static_cast<std::int64_t>(tasks_.size()), tasks_[0].work, threads);
}

void ForwardPlan::make_decode_tasks(std::int64_t threads) {
  const std::int64_t rows = group() * request_.q_len;
  std::int64_t chunks = 0;
  for (std::int64_t first = 0; first < rows; first += decode_rows_at_once(rows - first)) ++chunks;
  const std::int64_t pairs = request_.batch * request_.kv_heads * chunks;
  std::int64_t states = 0;
  for (std::int64_t b = 0; b < request_.batch; ++b) {
    const std::int64_t splits = ceil_div(request_.layout->length(b), kSplitKeys);
    const std::int64_t cuts = split_items(pairs, splits, threads);
    for (std::int64_t kv_head = 0; kv_head < request_.kv_heads; ++kv_head) {
      for (std::int64_t first = 0, count = 0; first < rows; first += count) {
        count = decode_rows_at_once(rows - first);
        Task task{.b = b, .kv_head = kv_head, .first = first, .count = count};
        task.split_end = splits;
        if (cuts > 1) {
          task.states = states;
          merges_.push_back(task);
        }
        for (std::int64_t cut = 0; cut < cuts; ++cut) {
          task.split_begin = splits * cut / cuts;
          task.split_end = splits * (cut + 1) / cuts;
          tasks_.push_back(task);
          if (cuts > 1) {
            task.states += (task.split_end - task.split_begin) * task.count *
                           kernels::decode_state_size(static_cast<int>(request_.v_head_dim));
          }
        }
        if (cuts > 1) states = task.states;
      }
    }
  }
  if (states > 0) states_ = Tensor::empty({states}, compute_type());
}

void ForwardPlan::allocate_scratch() {
  const std::size_t workers = request_.executor->concurrency();
  const kernels::ForwardCall call = make_call({});
  const std::size_t bytes = kernel_ == Kernel::kPrefill
                                ? kernels::prefill_scratch_bytes(call, tiles_per_item_)
                                : kernels::decode_scratch_bytes(call, kernels::kDecodeRows);
  scratch_step_ = (bytes + 4095) / 4096 * 4096 + 64 * 5;  // workers' memory in other sets of caches
  scratch_ = Tensor::empty({static_cast<std::int64_t>(scratch_step_ * workers)}, DType::u8);
  spans_.resize(workers *
                static_cast<std::size_t>(std::max<std::int64_t>(request_.layout->max_spans(), 1)));
  faults_.resize(workers);
}

kernels::ForwardCall ForwardPlan::make_call(const ForwardTensors& tensors) const {
  kernels::ForwardCall call;
  call.table = table_;
  call.dims = static_cast<int>(request_.head_dim);
  call.value_dims = static_cast<int>(request_.v_head_dim);
  call.scale = request_.scale;
  call.f64 = is_f64_;
  call.natural = natural_;
  call.pairs = pairs_;
  const auto pointer = [](const std::optional<kernels::TileProgram>& program) {
    return program.has_value() ? &*program : nullptr;
  };
  call.prefill = {pointer(prefill_score_), pointer(prefill_mask_)};
  call.decode = {pointer(decode_score_), pointer(decode_mask_)};
  call.q_rows.dtype = call.out_rows.dtype = request_.q_dtype;
  call.k_rows.dtype = request_.k_dtype;
  call.v_rows.dtype = request_.v_dtype;
  if (tensors.q.rank() != 4) return call;  // only to size scratch
  call.q = tensors.q.data();
  call.k = tensors.k.data();
  call.v = tensors.v.data();
  call.out = tensors.out.data();
  call.lse = tensors.lse;
  call.max_scores = tensors.max_scores;
  call.q_rows = steps_of(tensors.q);
  call.k_rows = steps_of(tensors.k);
  call.v_rows = steps_of(tensors.v);
  call.out_rows = steps_of(tensors.out);
  return call;
}

void* ForwardPlan::scratch(std::size_t worker) {
  return static_cast<std::uint8_t*>(scratch_.data()) + worker * scratch_step_;
}

kernels::KeySequence ForwardPlan::write_keys(const Task& task, const ForwardTensors& tensors,
                                             std::size_t worker) {
  const std::size_t most = spans_.size() / faults_.size();
  kernels::KeySpan* const spans = spans_.data() + worker * most;
  const auto& k = tensors.k.strides();
  const auto& v = tensors.v.strides();
  const std::int64_t count = request_.layout->write_spans(
      task.b, task.kv_head, {k[0], k[1], k[2], v[0], v[1], v[2]}, {spans, most});
  return {spans, count, request_.layout->length(task.b)};
}

void ForwardPlan::run_prefill(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                              const Task& task, std::size_t worker) {
  kernels::QueryTile tiles[kernels::kMaxQueryTiles];
  const auto& q = tensors.q.strides();
  const auto& out = tensors.out.strides();
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t h = task.kv_head * group() + (task.first + i) / q_tiles();
    const std::int64_t tile = (task.first + i) % q_tiles(), row = tile * kQueryTile;
    kernels::QueryTile& to = tiles[i];
    to = {.b = task.b,
          .h = h,
          .q_idx = q_begin(task.b) + row,
          .q_offset = task.b * q[0] + h * q[1] + row * q[2],
          .out_offset = task.b * out[0] + h * out[1] + row * out[2],
          .stat_offset = (task.b * request_.q_heads + h) * request_.q_len + row,
          .queries = static_cast<int>(std::min<std::int64_t>(kQueryTile, request_.q_len - row))};
    if (mask_runs_.has_value()) {
      const auto at = static_cast<std::size_t>(plane(task.b, h) * q_tiles() + tile);
      to.visible = lane_runs_.data() + first_lane_runs_[at];
      to.visible_count = static_cast<int>(first_lane_runs_[at + 1] - first_lane_runs_[at]);
    }
  }
  kernels::prefill(call,
                   {.keys = write_keys(task, tensors, worker),
                    .tiles = tiles,
                    .tile_count = static_cast<int>(task.count)},
                   scratch(worker), faults_[worker]);
}

void ForwardPlan::fill_rows(const ForwardTensors& tensors, const Task& task,
                            kernels::QueryRow* rows) const {
  const auto& q = tensors.q.strides();
  const auto& out = tensors.out.strides();
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t h = task.kv_head * group() + (task.first + i) / request_.q_len;
    const std::int64_t row = (task.first + i) % request_.q_len;
    rows[i] = {.b = task.b,
               .h = h,
               .q_idx = q_begin(task.b) + row,
               .q_offset = task.b * q[0] + h * q[1] + row * q[2],
               .out_offset = task.b * out[0] + h * out[1] + row * out[2],
               .stat_offset = (task.b * request_.q_heads + h) * request_.q_len + row,
               .visible = {nullptr, -1}};
    if (mask_runs_.has_value())
      rows[i].visible =
          mask_runs_->row(plane(task.b, h), row / request_.block_mask->block_size().q);
  }
}

void ForwardPlan::run_decode(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const Task& task, std::size_t worker) {
  kernels::QueryRow rows[kernels::kDecodeRows];
  fill_rows(tensors, task, rows);
  auto* const states = static_cast<char*>(states_.data());
  const auto size = static_cast<std::int64_t>(dtype_size(compute_type()));
  kernels::decode(call,
                  {.keys = write_keys(task, tensors, worker),
                   .rows = rows,
                   .row_count = static_cast<int>(task.count),
                   .split_begin = task.split_begin,
                   .split_end = task.split_end,
                   .states = task.states < 0 ? nullptr : states + task.states * size},
                  scratch(worker), faults_[worker]);
}

void ForwardPlan::run_merge(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            const Task& task, std::size_t worker) {
  kernels::QueryRow rows[kernels::kDecodeRows];
  fill_rows(tensors, task, rows);
  const auto size = static_cast<std::int64_t>(dtype_size(compute_type()));
  kernels::merge_splits(call,
                        {.keys = write_keys(task, tensors, worker),
                         .rows = rows,
                         .row_count = static_cast<int>(task.count),
                         .split_begin = task.split_begin,
                         .split_end = task.split_end},
                        static_cast<const char*>(states_.data()) + task.states * size,
                        task.split_end - task.split_begin, scratch(worker), faults_[worker]);
}

// Short sequences are over before the memory of the next one has come: it is asked for two tasks
// ahead (the hardware's own prefetchers stop at pages, which such a sequence hardly fills), into
// L2, which can wait for more lines than L1. 16 keys of 64 dims: 0.27 of the peak, without 0.18.
void ForwardPlan::prefetch(const ForwardTensors& tensors, std::size_t i) const {
  constexpr std::int64_t kMostBytes = 16384;
  if (i >= tasks_.size()) return;
  const Task& task = tasks_[i];
  const auto ask = [&](const auto& view, std::int64_t head, auto is_written) {
    const auto size = static_cast<std::int64_t>(dtype_size(view.dtype()));
    const std::int64_t bytes = view.dim(2) * view.strides()[2] * size;
    if (bytes > kMostBytes || view.strides()[3] != 1) return;
    const std::int64_t b = view.dim(0) == 1 ? 0 : task.b;
    const char* at = static_cast<const char*>(view.data()) +
                     (b * view.strides()[0] + head * view.strides()[1]) * size;
    for (std::int64_t line = 0; line < bytes; line += 64)
      __builtin_prefetch(at + line, decltype(is_written)::value, 2);
  };
  ask(tensors.q, task.kv_head * group(), std::false_type());
  ask(tensors.k, task.kv_head, std::false_type());
  ask(tensors.v, task.kv_head, std::false_type());
  ask(tensors.out, task.kv_head * group(), std::true_type());
}

void ForwardPlan::run_task(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                           std::size_t i, std::size_t worker) {
  prefetch(tensors, i + 2 * (tasks_at_once_ > 1 ? 1 : faults_.size()));
  if (kernel_ == Kernel::kPrefill)
    run_prefill(call, tensors, tasks_[i], worker);
  else
    run_decode(call, tensors, tasks_[i], worker);
}

void ForwardPlan::run(const ForwardTensors& tensors) {
  const kernels::ForwardCall call = make_call(tensors);
  std::fill(faults_.begin(), faults_.end(), kernels::TileFault());
  const auto at_once = static_cast<std::size_t>(tasks_at_once_);
  const std::size_t claims = (tasks_.size() + at_once - 1) / at_once;
  request_.executor->run(claims, [&](std::size_t claim, std::size_t worker) {
    const FloatEnv float_env;
    const std::size_t end = std::min((claim + 1) * at_once, tasks_.size());
    for (std::size_t i = claim * at_once; i < end; ++i) run_task(call, tensors, i, worker);
  });
  if (!merges_.empty()) {
    request_.executor->run(merges_.size(), [&](std::size_t i, std::size_t worker) {
      const FloatEnv float_env;
      run_merge(call, tensors, merges_[i], worker);
    });
  }
  formula::throw_first_fault(faults_);
}

}  // namespace quire::plan
