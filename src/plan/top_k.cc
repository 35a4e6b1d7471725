// Divides top_k_keys into tiles of queries, or into ranges of keys where queries are few, and
// merges the candidates of ranges. Plan layer.
#include "plan/top_k.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "formula/compile/compile.h"
#include "formula/first_fault.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"
#include "kernels/top_k/top_k.h"
#include "plan/forward_call.h"
#include "plan/visible_keys.h"
#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/run_parallel.h"

namespace quire::plan {
namespace {

using kernels::kQueryTile;

struct Sizes {
  explicit Sizes(const TopKProblem& problem)
      : batch(problem.q.dim(0)), q_len(problem.q.dim(1)), kv_len(problem.k.dim(1)) {}

  std::int64_t batch, q_len, kv_len;
};

kernels::TopKTensor rows_of(const ConstTensorView& view, bool has_heads, bool has_columns) {
  const Shape& steps = view.strides();
  const std::size_t rank = view.rank();
  return {.data = view.data(),
          .dtype = view.dtype(),
          .batch_step = view.dim(0) == 1 ? 0 : steps[0],
          .row_step = steps[1],
          .head_step = has_heads ? steps[2] : 0,
          .column_step = has_columns ? steps[rank - 1] : 1};
}

// One call.
class TopK {
 public:
  explicit TopK(const TopKProblem& problem)
      : sizes_(problem), mask_(problem.mask), executor_(executor_of(problem.executor)) {
    const auto is_f64 = [](const ConstTensorView& view) { return view.dtype() == DType::f64; };
    call_ = {.table = &kernels::current_table(),
             .q = rows_of(problem.q, true, true),
             .k = rows_of(problem.k, false, true),
             .weights = rows_of(problem.weights, true, false),
             .heads = static_cast<int>(problem.q.dim(2)),
             .dims = static_cast<int>(problem.q.dim(3)),
             .top_k = problem.top_k,
             .kept = std::min(problem.top_k, sizes_.kv_len),
             .f64 = is_f64(problem.q) || is_f64(problem.k) || is_f64(problem.weights)};
    if (mask_.has_value()) compile_mask();
    result_ = Tensor::empty({sizes_.batch, sizes_.q_len, problem.top_k}, DType::i32);
  }

  Tensor run() {
    cut();
    const std::size_t workers = executor_->concurrency();
    const std::size_t step = (kernels::top_k_scratch_bytes(call_, tile_) + 4095) / 4096 * 4096;
    Tensor scratch = Tensor::empty({static_cast<std::int64_t>(step * workers)}, DType::u8);
    std::vector<kernels::TileFault> faults(workers);
    run_parallel(*executor_, static_cast<std::size_t>(items_),
                 [&](std::size_t i, std::size_t worker) {
                   kernels::top_k(call_, item_of(static_cast<std::int64_t>(i)),
                                  static_cast<std::uint8_t*>(scratch.data()) + worker * step,
                                  faults[worker]);
                 });
    formula::throw_first_fault(faults);
    const std::int64_t queries = sizes_.batch * sizes_.q_len;
    for (std::int64_t q = 0; q < queries && ranges_ > 1; ++q) {
      kernels::merge_top_k(call_, candidates_of(q, 0), counts_.data() + q * ranges_, ranges_,
                           result_.data_as<std::int32_t>() + q * call_.top_k);
    }
    return std::move(result_);
  }

 private:
  void compile_mask() {
    visible_.emplace(BlockMasks(*mask_), sizes_.q_len, sizes_.kv_len);
    const std::optional<Formula> rule = rule_to_evaluate(mask_->mask_mod());
    if (!rule.has_value()) return;
    const auto last = [](std::int64_t size) { return std::max<std::int64_t>(size, 1) - 1; };
    const std::int64_t begin = mask_->q_begin();
    program_ = formula::compile({.mask_mod = &*rule, .mask_only = true},
                                {.precision = call_.f64 ? Precision::kF64 : Precision::kF32,
                                 .extents = {{0, last(sizes_.batch)},
                                             {0, 0},
                                             {begin, begin + last(sizes_.q_len)},
                                             {0, last(sizes_.kv_len)}},
                                 .max_rows = kernels::kTileKeys});
    call_.mask = &*program_;
  }

  // Items are tiles of queries, smaller ones where threads would run out of items; where even
  // single queries are too few, ranges of keys, each with its own candidates.
  void cut() {
    const auto threads = static_cast<std::int64_t>(executor_->concurrency());
    tile_ = static_cast<int>(
        std::min<std::int64_t>(kQueryTile, std::max<std::int64_t>(sizes_.q_len, 1)));
    tiles_ = ceil_div(sizes_.q_len, kQueryTile);
    const std::int64_t tiles = sizes_.batch * tiles_;
    constexpr std::int64_t kLeastKeys = 2048;
    if (tiles > 0 && tiles < 4 * threads && threads > 1)
      ranges_ = std::clamp<std::int64_t>(4 * threads / tiles, 1, sizes_.kv_len / kLeastKeys + 1);
    if (tiles * ranges_ * tile_ * call_.kept > kMostCandidates) ranges_ = 1;
    items_ = tiles * ranges_;
    if (ranges_ == 1) return;
    const std::int64_t lists = sizes_.batch * sizes_.q_len * ranges_;
    counts_.resize(static_cast<std::size_t>(lists));
    const auto size = static_cast<std::int64_t>(kernels::candidate_bytes(call_.f64));
    candidates_ = Tensor::empty({lists * call_.kept * size}, DType::u8);
  }

  void* candidates_of(std::int64_t query, std::int64_t range) {
    const auto size = static_cast<std::int64_t>(kernels::candidate_bytes(call_.f64));
    return static_cast<char*>(candidates_.data()) + (query * ranges_ + range) * call_.kept * size;
  }

  kernels::TopKItem item_of(std::int64_t i) {
    const std::int64_t range = i % ranges_, tile = i / ranges_ % tiles_, b = i / ranges_ / tiles_;
    const std::int64_t row = tile * kQueryTile, query = b * sizes_.q_len + row;
    const auto cut_at = [&](std::int64_t part) {
      const std::int64_t whole = ceil_div(sizes_.kv_len, kQueryTile) * part / ranges_ * kQueryTile;
      return std::min(whole, sizes_.kv_len);
    };
    kernels::TopKItem item{.tile = {.b = b,
                                    .q_idx = (mask_ ? mask_->q_begin() : 0) + row,
                                    .queries = static_cast<int>(
                                        std::min<std::int64_t>(kQueryTile, sizes_.q_len - row))},
                           .first_row = row,
                           .key_begin = cut_at(range),
                           .key_end = range + 1 == ranges_ ? sizes_.kv_len : cut_at(range + 1)};
    if (visible_.has_value()) {
      const std::span<const kernels::LaneRuns> runs = visible_->tile(b, 0, tile);
      item.tile.visible = runs.data();
      item.tile.visible_count = static_cast<int>(runs.size());
    }
    if (ranges_ == 1) {
      item.keys = result_.data_as<std::int32_t>() + query * call_.top_k;
    } else {
      item.range_step = ranges_;
      item.candidates = candidates_of(query, range);
      item.counts = counts_.data() + query * ranges_ + range;
    }
    return item;
  }

  static constexpr std::int64_t kMostCandidates = std::int64_t{1} << 22;

  Sizes sizes_;
  std::optional<BlockMask> mask_;
  std::shared_ptr<Executor> executor_;
  std::optional<BlockMaskKeys> visible_;
  std::optional<kernels::TileProgram> program_;
  kernels::TopKCall call_;
  int tile_ = 1;
  std::int64_t tiles_ = 0, ranges_ = 1, items_ = 0;
  std::vector<std::int64_t> counts_;  // [queries][ranges]
  Tensor result_, candidates_;        // candidates: [queries][ranges][kept]
};

}  // namespace

Tensor top_k(const TopKProblem& problem) { return TopK(problem).run(); }

}  // namespace quire::plan
