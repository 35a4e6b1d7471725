// Plans tasks from sizes, and runs them over tensors. Plan layer.
#include "plan/forward_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "formula/compile/compile.h"
#include "formula/first_fault.h"
#include "formula/graph.h"
#include "kernels/dispatch.h"
#include "layout/chosen_keys.h"
#include "plan/finish_states.h"
#include "plan/forward_call.h"
#include "plan/join_queries.h"
#include "plan/one_channel.h"
#include "runtime/ceil_div.h"
#include "runtime/cpu_info.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

using kernels::kQueryTile;

namespace {

// Whether values are the first columns of the keys' rows.
bool v_is_in_k(const ConstTensorView& k, const ConstTensorView& v) {
  return k.data() == v.data() && k.dtype() == v.dtype() && v.dim(3) <= k.dim(3) &&
         k.strides() == v.strides();
}

}  // namespace

layout::KeyStrides ForwardTensors::key_strides() const {
  const auto& k_steps = k.strides();
  const auto& v_steps = v.strides();
  const auto scales = [](const ConstTensorView& view) {
    if (view.rank() != 4) return layout::RowStrides();
    const auto& steps = view.strides();
    return layout::RowStrides{steps[0], steps[1], steps[2]};
  };
  return {.k_batch = k_steps[0],
          .k_head = k_steps[1],
          .k_row = k_steps[2],
          .v_batch = v_steps[0],
          .v_head = v_steps[1],
          .v_row = v_steps[2],
          .k_scales = scales(k_scales),
          .v_scales = scales(v_scales)};
}

ForwardPlan::ForwardPlan(AttentionProblem&& problem)
    : request_(std::move(problem)),
      table_(&kernels::current_table()),
      rope_(request_),
      caches_{.l2 = l2_cache_bytes(), .l3 = l3_cache_bytes()} {
  request_.head_dim = std::max<std::int64_t>(request_.head_dim, 1);  // one_channel.h
  find_visible();
  request_.decode_rows = kernels::most_decode_rows(make_call());
  work_ = make_tasks(request_, visible_.get(),
                     static_cast<std::int64_t>(request_.executor->concurrency()));
  compile_programs();
  allocate_scratch();
  for (const std::optional<Formula>* formula : {&request_.score, &mask_formula_})
    if (formula->has_value())
      std::ranges::copy((*formula)->graph().buffers(), std::back_inserter(buffers_));
  if (request_.sinks.has_value()) buffers_.push_back(*request_.sinks);
  if (request_.rope.has_value() && request_.rope->cos.has_value()) {
    buffers_.push_back(*request_.rope->cos);
    buffers_.push_back(*request_.rope->sin);
  }
  read_sinks(request_, sinks_);  // allocates, so that run() need not
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
  return static_cast<std::size_t>(scratch_.numel()) + states_.numel() * dtype_size(states_.dtype());
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
  const std::int64_t rows = tensors.states != nullptr ? tensors.state_rows : tensors.q.dim(2);
  const bool has_out = tensors.out.rank() == 4;
  return {.q = batch * q[0] + h * q[1] + row * q[2],
          .out = has_out ? batch * out[0] + h * out[1] + row * out[2] : 0,
          .stat = tensors.stats_by_row ? (batch * rows + row) * request_.q_heads + h
                                       : (batch * request_.q_heads + h) * rows + row};
}

void ForwardPlan::compile_prefill() {
  const formula::CompileOptions options = compile_options(request_, kernels::kTileKeys);
  if (request_.score && !prefill_score_)
    prefill_score_ = formula::compile({.score_mod = &*request_.score}, options);
  if (mask_formula_ && !prefill_mask_)
    prefill_mask_ = formula::compile({.mask_mod = &*mask_formula_, .mask_only = true}, options);
}

void ForwardPlan::compile_programs() {
  using kernels::Vary;
  if (work_.has_prefill) compile_prefill();
  formula::CompileOptions options = compile_options(request_, kernels::kTileKeys);
  const Formula* score = request_.score ? &*request_.score : nullptr;
  const Formula* mask = mask_formula_ ? &*mask_formula_ : nullptr;
  // The row kernel uses these too.
  if (!work_.prefixes.empty()) options.vary[0] = Vary::kRowList;
  options.vary[1] = Vary::kRowList;
  options.vary[2] = Vary::kRowList;
  options.vary[3] = Vary::kLaneRange;
  options.max_rows = work_.most_rows;
  options.groups = kernels::kTileKeys / kernels::kGroupLanes;
  options.max_per_row = true;
  if (score != nullptr) decode_score_ = formula::compile({.score_mod = score}, options);
  if (mask != nullptr)
    decode_mask_ = formula::compile({.mask_mod = mask, .mask_only = true}, options);
}

void ForwardPlan::allocate_scratch() {
  const std::size_t workers = request_.executor->concurrency();
  const kernels::ForwardCall call = make_call();
  std::size_t bytes = 0;
  if (work_.has_prefill) bytes = kernels::prefill_scratch_bytes(call, work_.most_tiles);
  if (work_.has_decode)
    bytes = std::max(bytes, kernels::decode_scratch_bytes(call, work_.most_rows));
  if (work_.has_chosen) bytes = std::max(bytes, kernels::chosen_scratch_bytes(call));
  scratch_step_ = (bytes + 4095) / 4096 * 4096 + 64 * 5;  // workers' memory in different cache sets
  scratch_ = Tensor::empty({static_cast<std::int64_t>(scratch_step_ * workers)}, DType::u8);
  spans_.resize(workers *
                static_cast<std::size_t>(std::max<std::int64_t>(request_.layout->max_spans(), 1)));
  if (work_.has_prefill) tiles_.resize(workers * kernels::kMaxQueryTiles);
  if (prefill_mask_) looks_.resize(workers, kernels::LastLook(&*prefill_mask_));
  faults_.resize(workers);
  if (work_.state_elements > 0) states_ = Tensor::empty({work_.state_elements}, compute_type());
}

kernels::ForwardCall ForwardPlan::make_call() const {
  kernels::ForwardCall call = call_of(request_, *table_);
  const auto pointer = [](const std::optional<kernels::TileProgram>& program) {
    return program.has_value() ? &*program : nullptr;
  };
  call.prefill = {pointer(prefill_score_), pointer(prefill_mask_)};
  call.decode = {pointer(decode_score_), pointer(decode_mask_)};
  call.rope = rope_.tables();
  return call;
}

kernels::ForwardCall ForwardPlan::make_call(const ForwardTensors& tensors) const {
  kernels::ForwardCall call = make_call();
  call.q = tensors.q.data();
  call.k = tensors.k.data();
  call.v = tensors.v.data();
  if (request_.sinks.has_value()) call.sinks = sinks_.data();
  call.lse = tensors.lse;
  call.max_scores = tensors.max_scores;
  call.row_max = tensors.row_max;
  call.row_sum = tensors.row_sum;
  call.stat_step = tensors.stats_by_row ? request_.q_heads : 1;
  call.q_rows = steps_of(tensors.q);
  call.k_rows = steps_of(tensors.k);
  call.v_rows = steps_of(tensors.v);
  if (tensors.states == nullptr) {
    call.out = tensors.out.data();
    call.out_rows = steps_of(tensors.out);
  } else {
    const bool by_split = request_.states == KeptStates::kSplits;
    call.states = {tensors.states, tensors.resumes, by_split ? state_count(request_) : 1, by_split};
  }
  call.k_scales = scale_rows(tensors.k_scales);
  call.v_scales = scale_rows(tensors.v_scales);
  // Rows that are decoded or rotated when read no longer serve as values.
  call.v_in_k = v_is_in_k(tensors.k, tensors.v) && !kernels::is_coded(call.k_coding) &&
                !kernels::is_coded(call.v_coding) && !request_.rope.has_value();
  return call;
}

void* ForwardPlan::scratch(std::size_t worker) {
  return static_cast<std::uint8_t*>(scratch_.data()) + worker * scratch_step_;
}

kernels::KeySequence ForwardPlan::write_keys(const ForwardTask& task, const SeenRange& seen,
                                             const ForwardTensors& tensors, std::size_t worker) {
  const std::size_t most = spans_.size() / faults_.size();
  const std::span<kernels::KeySpan> spans(spans_.data() + worker * most, most);
  const layout::KeyLayout& layout = *request_.layout;
  const auto write = [&](layout::KeyRange range, std::size_t first) {
    return layout.write_spans(task.b, task.kv_head, range, tensors.key_strides(),
                              spans.subspan(first));
  };
  const auto [range, gap] = seen;
  // A gap that no query sees becomes one span, instead of one per page.
  if (gap.end - gap.begin < 2 * layout.page_size() || layout.page_size() == 0)
    return {spans.data(), write(range, 0), layout.length(task.b)};
  const std::int64_t front = write({range.begin, gap.begin}, 0);
  const auto at = static_cast<std::size_t>(front);
  const std::int64_t after = write({gap.end, range.end}, at + 1);
  spans[at] = spans[at + 1];  // any address that exists
  spans[at].begin = front == 0 ? gap.begin : spans[at - 1].end;
  spans[at].end = spans[at + 1].begin;
  return {spans.data(), front + 1 + after, layout.length(task.b)};
}

// A tile of up to 64 queries from row `place.row`, a multiple of 64, on. lanes: [64], used where a
// sequence's visible keys are known row by row.
kernels::QueryTile ForwardPlan::tile_of(const kernels::ForwardCall& call,
                                        const ForwardTensors& tensors, const RowPlace& place,
                                        kernels::LaneRuns* lanes) const {
  const auto [b, h, row] = place;
  const std::int64_t q_len = request_.queries->length(b);
  const Rows rows = rows_of(tensors, b, h);
  kernels::QueryTile made{
      .b = request_.b_of(b),
      .h = h,
      .q_idx = request_.begin_of(b) + row,
      .q_offset = rows.q + row * call.q_rows.row_step,
      .out_offset = rows.out + row * call.out_rows.row_step,
      .stat_offset = rows.stat + row * call.stat_step,
      .queries = static_cast<int>(std::min<std::int64_t>(kQueryTile, q_len - row))};
  if (request_.chosen != nullptr) made.chosen = request_.chosen->lists(b, h, row);
  if (visible_ == nullptr) return made;
  const bool by_tile =
      kernel_of_sequence(request_, b, q_len, request_.layout->length(b)) == Kernel::kPrefill;
  if (by_tile) {
    const std::span<const kernels::LaneRuns> runs = visible_->tile(b, h, row / kQueryTile);
    made.visible = runs.data();
    made.visible_count = static_cast<int>(runs.size());
    return made;
  }
  for (int i = 0; i < made.queries; ++i) lanes[i] = {i, i + 1, visible_->row(b, h, row + i)};
  made.visible = lanes;
  made.visible_count = made.queries;
  return made;
}

void ForwardPlan::run_prefill(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                              const ForwardTask& task, kernels::MemoryAhead* ahead,
                              std::size_t worker) {
  kernels::QueryTile* const tiles = tiles_.data() + worker * kernels::kMaxQueryTiles;
  const std::int64_t q_tiles = ceil_div(request_.queries->length(task.b), kQueryTile);
  SeenTiles seen(request_.layout->length(task.b));
  for (std::int64_t i = 0; i < task.count; ++i) {
    const std::int64_t h = task.kv_head * request_.group() + (task.first + i) / q_tiles;
    const std::int64_t row = (task.first + i) % q_tiles * kQueryTile;
    tiles[i] = tile_of(call, tensors, {task.b, h, row}, nullptr);
    if (visible_ == nullptr) seen.add({nullptr, -1});
    for (int j = 0; j < tiles[i].visible_count; ++j) seen.add(tiles[i].visible[j].visible);
  }
  kernels::prefill(call,
                   {.keys = write_keys(task, seen.seen(), tensors, worker),
                    .tiles = tiles,
                    .tile_count = static_cast<int>(task.count),
                    .ahead = ahead != nullptr && ahead->lines() > 0 ? ahead : nullptr,
                    .last_look = looks_.empty() ? nullptr : &looks_[worker],
                    .keys_from_memory = from_memory_ && keys_exceed_l2(task.b)},
                   scratch(worker), faults_[worker]);
}

kernels::QueryRow ForwardPlan::row_of(const kernels::ForwardCall& call,
                                      const ForwardTensors& tensors, const RowPlace& place) {
  const auto [b, h, row] = place;
  const Rows rows = rows_of(tensors, b, h);
  kernels::QueryRow made{.b = request_.b_of(b),
                         .h = h,
                         .q_idx = request_.begin_of(b) + row,
                         .q_offset = rows.q + row * call.q_rows.row_step,
                         .out_offset = rows.out + row * call.out_rows.row_step,
                         .stat_offset = rows.stat + row * call.stat_step,
                         .visible = {nullptr, -1}};
  if (request_.chosen != nullptr) made.chosen = *request_.chosen->lists(b, h, row);
  if (visible_ != nullptr) made.visible = visible_->row(b, h, row);
  if (keeps_ && keeps_scores(b)) made.kept_scores = kept_scores(tensors, b, h);
  return made;
}

void ForwardPlan::fill_rows(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            const ForwardTask& task, kernels::QueryRow* to) {
  const std::int64_t q_len = request_.queries->length(task.b);
  const std::int64_t first_head = task.kv_head * request_.group();
  for (std::int64_t i = task.first; i < task.first + task.count; ++i)
    *to++ = row_of(call, tensors, {task.b, first_head + i / q_len, i % q_len});
}

SeenRange ForwardPlan::seen_by(std::int64_t sequence,
                               std::span<const kernels::QueryRow> rows) const {
  SeenTiles seen(request_.layout->length(sequence));
  for (const kernels::QueryRow& row : rows) seen.add(row.visible);
  return seen.seen();
}

kernels::DecodePrefix ForwardPlan::prefix_of(const ForwardTask& task) const {
  if (task.prefix_states < 0) return {};
  const std::int64_t size = dtype_size(compute_type());
  return {.states = static_cast<const char*>(states_.data()) + task.prefix_states * size,
          .step = task.prefix_step,
          .tiles = task.prefix_tiles};
}

// Walks the shared keys with the rows of all members and stores their states: split by split if
// there are more rows than the kernel takes, so that keys come from memory once.
void ForwardPlan::run_prefix(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const PrefixTask& task, std::size_t worker) {
  const SharedPrefix& prefix = work_.shared.prefixes[task.prefix];
  kernels::QueryRow rows[kPrefixRows];
  ForwardTask of{.kernel = Kernel::kDecode, .kv_head = task.kv_head};
  std::int64_t count = 0;
  for (std::int64_t m = prefix.first; m < prefix.first + prefix.count; ++m, count += of.count) {
    of.b = work_.shared.members[m];
    of.count = static_cast<std::int32_t>(request_.group() * request_.queries->length(of.b));
    fill_rows(call, tensors, of, rows + count);
  }
  of.b = work_.shared.members[prefix.first];
  const std::int64_t keys_end = prefix.tiles * kernels::kTileKeys;
  const std::int64_t state =
      kernels::decode_state_size(call.value_dims) * dtype_size(compute_type());
  auto* const states =
      static_cast<char*>(states_.data()) + task.states * dtype_size(compute_type());
  const std::int64_t at_once = decode_rows_at_once(count, request_.decode_rows) == count
                                   ? task.split_end - task.split_begin
                                   : 1;
  for (std::int64_t split = task.split_begin; split < task.split_end; split += at_once) {
    const layout::KeyRange range{split * kernels::kSplitKeys,
                                 std::min(keys_end, (split + at_once) * kernels::kSplitKeys)};
    kernels::KeySequence keys = write_keys(of, {range, {}}, tensors, worker);
    keys.length = keys_end;
    for (std::int64_t row = 0, some; row < count; row += some) {
      some = decode_rows_at_once(count - row, request_.decode_rows);
      kernels::decode(call,
                      {.keys = keys,
                       .rows = rows + row,
                       .row_count = static_cast<int>(some),
                       .split_begin = split,
                       .split_end = split + at_once,
                       .states = states + ((split - task.split_begin) * count + row) * state},
                      scratch(worker), faults_[worker]);
    }
  }
}

void ForwardPlan::run_decode(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const ForwardTask& task, std::size_t worker) {
  kernels::QueryRow rows[kernels::kManyDecodeRows];
  fill_rows(call, tensors, task, rows);
  SeenRange seen = seen_by(task.b, {rows, static_cast<std::size_t>(task.count)});
  if (task.states >= 0)
    seen =
        seen.between(task.split_begin * kernels::kSplitKeys, task.split_end * kernels::kSplitKeys);
  auto* const states = static_cast<char*>(states_.data());
  const std::int64_t size = dtype_size(compute_type());
  kernels::decode(call,
                  {.keys = write_keys(task, seen, tensors, worker),
                   .rows = rows,
                   .row_count = static_cast<int>(task.count),
                   .split_begin = task.split_begin,
                   .split_end = task.split_end,
                   .states = task.states < 0 ? nullptr : states + task.states * size,
                   .prefix = prefix_of(task)},
                  scratch(worker), faults_[worker]);
}

// Heads that share their choice of keys are rows of a query, and so are neighbouring queries if
// their choices are much the same; queries take turns.
void ForwardPlan::run_chosen(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const ForwardTask& task, std::size_t worker) {
  const std::int64_t group = request_.group(), first_head = task.kv_head * group;
  const kernels::KeySequence keys =
      write_keys(task, {{0, request_.layout->length(task.b)}, {}}, tensors, worker);
  kernels::QueryRow rows[kernels::kMostChosenRows];
  const bool by_head = request_.chosen->by_head();
  // `heads` heads from `at` on, of each query.
  const auto run = [&](std::int64_t at, std::int64_t queries, std::int64_t heads) {
    kernels::QueryRow* to = rows;
    for (std::int64_t i = 0; i < queries; ++i)
      for (std::int64_t row = at + i * group; row < at + i * group + heads; ++row)
        *to++ = row_of(call, tensors, {task.b, first_head + row % group, row / group});
    kernels::KeyList sample[kMostJoinedRows];
    const std::int64_t samples = std::min<std::int64_t>(queries, kMostJoinedRows);
    for (std::int64_t i = 0; i < samples; ++i) sample[i] = rows[i * heads].chosen;
    const std::int64_t joined =
        queries_to_join({sample, static_cast<std::size_t>(samples)}, static_cast<int>(heads));
    const std::int64_t apart = queries % joined;  // at the end
    const auto part = [&](const kernels::QueryRow* from, std::int64_t count, std::int64_t of_each) {
      if (count > 0)
        kernels::decode_chosen(call,
                               {.keys = keys,
                                .rows = from,
                                .queries = static_cast<int>(count),
                                .row_count = static_cast<int>(of_each),
                                .l2_bytes = caches_.l2},
                               scratch(worker), faults_[worker]);
    };
    part(rows, queries / joined, joined * heads);
    part(rows + (queries - apart) * heads, apart, heads);
  };
  // A task holds whole queries or a part of one.
  const bool is_whole = task.first % group == 0 && task.count % group == 0;
  const std::int64_t heads = is_whole ? group : task.count;
  for (std::int64_t head = 0, some; head < heads; head += some) {
    some = by_head ? 1 : decode_rows_at_once(heads - head, request_.decode_rows);
    run(task.first + head, task.count / heads, some);
  }
}

void ForwardPlan::run_merge(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            const ForwardTask& task, std::size_t worker) {
  kernels::QueryRow rows[kernels::kManyDecodeRows];
  fill_rows(call, tensors, task, rows);
  const std::int64_t size = dtype_size(compute_type());
  const SeenRange seen = seen_by(task.b, {rows, static_cast<std::size_t>(task.count)});
  kernels::merge_splits(call,
                        {.keys = write_keys(task, seen, tensors, worker),
                         .rows = rows,
                         .row_count = static_cast<int>(task.count),
                         .split_begin = task.split_begin,
                         .split_end = task.split_end,
                         .prefix = prefix_of(task)},
                        {.data = static_cast<const char*>(states_.data()) + task.states * size,
                         .splits = task.split_end - task.split_begin,
                         .step = task.state_step},
                        scratch(worker), faults_[worker]);
}

void ForwardPlan::run_claim(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                            std::size_t claim, std::size_t worker) {
  const std::size_t begin = work_.claims[claim];
  const std::size_t end = work_.claims[claim + 1];
  const std::size_t ahead = 2 * (end - begin > 1 ? 1 : faults_.size());
  for (std::size_t i = begin; i < end; ++i) {
    kernels::MemoryAhead memory = memory_of(tensors, next_task(claim, i), work_.tasks[i]);
    if (prefetches_) {
      prefetch(tensors, i + ahead);
      if (work_.tasks[i].kernel != Kernel::kPrefill) memory.ask(memory.lines());
    }
    switch (work_.tasks[i].kernel) {
      case Kernel::kPrefill:
        run_prefill(call, tensors, work_.tasks[i], &memory, worker);
        break;
      case Kernel::kDecode:
        run_decode(call, tensors, work_.tasks[i], worker);
        break;
      case Kernel::kChosen:
        run_chosen(call, tensors, work_.tasks[i], worker);
        break;
    }
  }
}

void ForwardPlan::run(const ForwardTensors& tensors) {
  if (tensors.q.dim(3) == 0) {
    ForwardTensors some = tensors;
    some.q = with_channel(tensors.q);
    some.k = with_channel(tensors.k);
    return run(some);
  }
  read_sinks(request_, sinks_);
  rope_.read();
  if (tensors.wants_weights()) allocate_weights(tensors);
  keeps_ = tensors.wants_weights();
  from_memory_ = come_from_memory(tensors);
  prefetches_ = from_memory_ && request_.layout->max_spans() == 1;
  kernels::ForwardCall call = make_call(tensors);
  if (tensors.wants_weights()) {
    const auto half = static_cast<std::size_t>(row_states_.numel() / 2);
    call.row_max = row_states_.data();
    call.row_sum = static_cast<char*>(row_states_.data()) + half * dtype_size(compute_type());
  }
  std::fill(faults_.begin(), faults_.end(), kernels::TileFault());
  for (kernels::LastLook& look : looks_) look.forget();
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
  if (!tensors.wants_weights()) return;
  request_.is_f64() ? run_weights<double>(call, tensors) : run_weights<float>(call, tensors);
}

}  // namespace quire::plan
