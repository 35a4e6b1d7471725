// Splits rectangles while intervals leave them undecided, then evaluates the rest. Mask layer.
#include "mask/block_prover.h"

#include <algorithm>
#include <array>
#include <bit>

#include "formula/bound/depends.h"
#include "formula/compile/compile.h"
#include "formula/first_fault.h"
#include "formula/simplify/simplify.h"
#include "kernels/bit_range.h"
#include "kernels/dispatch.h"

namespace quire::mask {

using formula::Bounder;
using formula::Tri;
using kernels::TileCoords;

namespace {

// Keys are across the lanes of a tile, so that a dense mask[q_idx, kv_idx] is read along its rows.
// The first tile of a block has only two rows: patterns and noise show both kinds of elements at
// once.
constexpr int kTileRows = 32, kTileGroups = 2, kTileLanes = kTileGroups * kernels::kGroupLanes;
constexpr int kFirstRows = 2;

formula::Rectangle extents(std::int64_t batch, std::int64_t heads, const BlockGrid& grid) {
  return {{0, std::max<std::int64_t>(batch, 1) - 1},
          {0, std::max<std::int64_t>(heads, 1) - 1},
          {grid.q_begin, grid.q_begin + std::max<std::int64_t>(grid.q_len, 1) - 1},
          {0, std::max<std::int64_t>(grid.kv_len, 1) - 1}};
}

kernels::TileProgram compile_mask(const Formula& formula, const formula::Rectangle& extents) {
  using kernels::Vary;
  return formula::compile(
      {.mask_mod = &formula, .mask_only = true},
      {.extents = extents,
       .vary = {Vary::kConstant, Vary::kConstant, Vary::kRowRange, Vary::kLaneRange},
       .max_rows = kTileRows,
       .groups = kTileGroups});
}

using Words = std::array<std::uint64_t, kTileGroups>;

// Bits [begin, end) of 128.
Words lanes_between(std::int64_t begin, std::int64_t end) {
  Words words{};
  for (int g = 0; g < kTileGroups; ++g) {
    const auto lo = static_cast<int>(std::clamp<std::int64_t>(begin - 64 * g, 0, 64));
    const auto hi = static_cast<int>(std::clamp<std::int64_t>(end - 64 * g, 0, 64));
    if (lo < hi) words[g] = kernels::bits_between(lo, hi);
  }
  return words;
}

// What was seen of a row of blocks, lane by lane: whether any and all elements are visible.
struct Seen {
  Words any{}, all{~0ull, ~0ull};

  // `words` has one word for every group that has lanes.
  void add(const std::uint64_t* words, const Words& lanes) {
    for (std::size_t g = 0; g < kTileGroups && lanes[g] != 0; ++g) {
      any[g] |= words[g] & lanes[g];
      all[g] &= words[g] | ~lanes[g];
    }
  }
  bool any_of(const Words& lanes) const { return (any[0] & lanes[0]) | (any[1] & lanes[1]); }
  bool all_of(const Words& lanes) const {
    return ((~all[0] & lanes[0]) | (~all[1] & lanes[1])) == 0;
  }
};
constexpr Words kAllLanes{~0ull, ~0ull};

// Calls run(begin, end) for the runs of set bits, which may cross words.
template <class Run>
void for_bit_runs(const Words& words, const Run& run) {
  int begin = -1;
  for (int g = 0; g < kTileGroups; ++g) {
    const std::uint64_t word = words[g];
    for (int bit = 0; bit < 64;) {
      const std::uint64_t rest = (begin < 0 ? word : ~word) >> bit;
      if (rest == 0) break;
      bit += std::countr_zero(rest);
      if (begin < 0) {
        begin = 64 * g + bit;
      } else {
        run(begin, 64 * g + bit);
        begin = -1;
      }
    }
  }
  if (begin >= 0) run(begin, 64 * kTileGroups);
}

}  // namespace

// Where the result of one prove() call goes.
struct BlockProver::Region {
  std::int64_t b, h, first_row;
  std::span<RunList> rows;
  Worker& worker;
  const BlockGrid& grid;

  RunList& row(std::int64_t row) const { return rows[row - first_row]; }
};

BlockProver::Worker::Worker(const BlockProver& prover, RunBudget* budget)
    : budget_(budget),
      bounds_(prover.bounder_ ? prover.bounder_->make_scratch() : std::vector<formula::Interval>()),
      scratch_(Tensor::empty({static_cast<std::int64_t>(prover.program_.scratch_bytes) + 64},
                             DType::u8)),
      runner_(prover.program_, *kernels::current_table().tile_f32, scratch_.data()) {}

void BlockProver::Worker::append(RunList& runs, std::int64_t begin, std::int64_t end,
                                 BlockKind kind) {
  constexpr std::int64_t kBatch = 1024;  // runs accounted for at a time: threads share the budget
  const std::size_t before = runs.size();
  append_run(runs, begin, end, kind);
  if (runs.size() == before || budget_ == nullptr || ++unpaid_runs_ < kBatch) return;
  unpaid_runs_ = 0;
  budget_->spend(kBatch * 2 *
                 static_cast<std::int64_t>(sizeof(BlockRun)));  // for a while there are two copies
}

void BlockProver::Worker::record(const BlockGrid& grid, const BlockRect& rect,
                                 ProofStep::Outcome outcome) {
  if (steps.size() >= most_steps) return;
  const formula::IndexRange q = grid.q_range(rect.row_begin, rect.row_end);
  const formula::IndexRange kv = grid.kv_range(rect.col_begin, rect.col_end);
  steps.push_back(
      {q.first - grid.q_begin, q.last + 1 - grid.q_begin, kv.first, kv.last + 1, outcome});
}

BlockProver::BlockProver(const MaskMod& mod, std::int64_t batch, std::int64_t heads,
                         const BlockGrid& grid, Proof proof)
    : grid_(grid),
      formula_(formula::simplify(mod.formula(), Precision::kF32)),
      program_(compile_mask(formula_, extents(batch, heads, grid))) {
  const formula::Depends depends = formula::depends(formula_.graph())[formula_.root()];
  depends_on_b_ = depends.b;
  depends_on_h_ = depends.h;
  may_fault_ = !program_.checks.empty();
  if (proof != Proof::kNone) {
    bounder_ =
        std::make_unique<Bounder>(formula_, Precision::kF32,
                                  formula::BoundOptions{.read_buffers = proof == Proof::kContents});
    if (may_fault_) {
      std::vector<formula::Interval> bounds = bounder_->make_scratch();
      bounder_->bound_all(extents(batch, heads, grid), bounds);
      may_fault_ = !formula::is_fault_free(formula_, bounds);
    }
  }
  if (grid.size.kv <= kTileLanes) {
    leaf_cols_ = kTileLanes / grid.size.kv;
    leaf_rows_ = std::max<std::int64_t>(1, kTileRows / grid.size.q);
  }
}

void BlockProver::prove(std::int64_t b, std::int64_t h, const BlockRect& rect,
                        std::span<RunList> rows, Worker& worker) const {
  prove(b, h, grid_, rect, rows, worker);
}

void BlockProver::prove(std::int64_t b, std::int64_t h, const BlockGrid& grid,
                        const BlockRect& rect, std::span<RunList> rows, Worker& worker) const {
  if (rect.rows() <= 0 || rect.cols() <= 0) return;
  split({b, h, rect.row_begin, rows, worker, grid}, rect);
}

void BlockProver::split(const Region& region, const BlockRect& rect) const {
  using Outcome = ProofStep::Outcome;
  const auto record = [&](Outcome outcome) { region.worker.record(region.grid, rect, outcome); };
  if (bounder_ != nullptr) {
    const formula::Rectangle rectangle{{region.b, region.b},
                                       {region.h, region.h},
                                       region.grid.q_range(rect.row_begin, rect.row_end),
                                       region.grid.kv_range(rect.col_begin, rect.col_end)};
    ++region.worker.rectangles;
    std::span<formula::Interval> bounds = region.worker.bounds_;
    const Tri tri = bounder_->classify(rectangle, bounds);
    if (tri == Tri::kFalse) return record(Outcome::kEmpty);  // nothing visible, nothing can fault
    bool full = tri == Tri::kTrue;
    if (full && may_fault_) {
      bounder_->bound_all(rectangle, bounds);
      full = formula::is_fault_free(formula_, bounds);
    }
    if (full) {
      record(Outcome::kFull);
      return append_full(region, rect);
    }
  }
  const bool can_split_rows = rect.rows() > leaf_rows_, can_split_cols = rect.cols() > leaf_cols_;
  if (!can_split_rows && !can_split_cols) {
    record(Outcome::kEvaluated);
    return evaluate(region, rect);
  }
  record(Outcome::kSplit);
  const bool by_rows = can_split_rows && (!can_split_cols || rect.rows() * region.grid.size.q >=
                                                                 rect.cols() * region.grid.size.kv);
  BlockRect first = rect, second = rect;
  // The middle, rounded to a multiple of the leaf so that leaves stay whole.
  const auto middle = [](std::int64_t begin, std::int64_t end, std::int64_t leaf) {
    const std::int64_t at = begin + (end - begin) / 2;
    const std::int64_t down = at / leaf * leaf;
    return down > begin ? down : down + leaf;
  };
  if (by_rows)
    first.row_end = second.row_begin = middle(rect.row_begin, rect.row_end, leaf_rows_);
  else
    first.col_end = second.col_begin = middle(rect.col_begin, rect.col_end, leaf_cols_);
  split(region, first);
  split(region, second);
}

void BlockProver::append_full(const Region& region, const BlockRect& rect) const {
  for (std::int64_t row = rect.row_begin; row < rect.row_end; ++row) {
    RunList& runs = region.row(row);
    const std::int64_t last = rect.col_end - 1;
    region.worker.append(runs, rect.col_begin, last, region.grid.full_kind(row, rect.col_begin));
    region.worker.append(runs, last, rect.col_end, region.grid.full_kind(row, last));
  }
}

// Evaluates the corners as rectangles of one element; most rules are decided there. Where the edge
// of a mask passes through a block, one corner is visible and another is not.
bool BlockProver::corners_differ(const Region& region, const BlockRect& rect) const {
  const formula::IndexRange q = region.grid.q_range(rect.row_begin, rect.row_end);
  const formula::IndexRange kv = region.grid.kv_range(rect.col_begin, rect.col_end);
  bool visible = false, hidden = false;
  for (const std::int64_t row : {q.first, q.last}) {
    for (const std::int64_t col : {kv.first, kv.last}) {
      const Tri tri =
          bounder_->classify({{region.b, region.b}, {region.h, region.h}, {row, row}, {col, col}},
                             region.worker.bounds_);
      ++region.worker.evaluated;
      visible |= tri == Tri::kTrue;
      hidden |= tri == Tri::kFalse;
      if (visible && hidden) return true;
    }
  }
  return false;
}

// A leaf: one block of any size, or several that fit into one tile's lanes.
void BlockProver::evaluate(const Region& region, const BlockRect& rect) const {
  const bool one_block = rect.rows() == 1 && rect.cols() == 1;
  const bool may_stop = one_block && !may_fault_;
  if (may_stop && bounder_ != nullptr && corners_differ(region, rect)) {
    region.worker.append(region.row(rect.row_begin), rect.col_begin, rect.col_end,
                         BlockKind::kPartial);
    return;
  }
  const formula::IndexRange q = region.grid.q_range(rect.row_begin, rect.row_end);
  const formula::IndexRange kv = region.grid.kv_range(rect.col_begin, rect.col_end);
  std::array<Seen, kTileRows> seen{};  // by row of the leaf
  TileCoords at;
  at.start[static_cast<int>(kernels::Coord::kB)] = region.b;
  at.start[static_cast<int>(kernels::Coord::kH)] = region.h;
  std::uint64_t words[kTileRows * kTileGroups];
  bool decided = false;
  for (std::int64_t k = kv.first; k <= kv.last && !decided; k += kTileLanes) {
    at.start[static_cast<int>(kernels::Coord::kKv)] = k;
    at.lanes = static_cast<int>(std::min<std::int64_t>(kTileLanes, kv.last + 1 - k));
    const Words lanes = lanes_between(0, at.lanes);
    const int groups = (at.lanes + kernels::kGroupLanes - 1) / kernels::kGroupLanes;
    for (std::int64_t row = q.first; row <= q.last && !decided; row += at.rows) {
      const std::int64_t most = may_stop && row == q.first ? kFirstRows : kTileRows;
      at.start[static_cast<int>(kernels::Coord::kQ)] = row;
      at.rows = static_cast<int>(std::min(most, q.last + 1 - row));
      region.worker.runner_.begin(at);
      region.worker.runner_.mask(words);
      region.worker.evaluated += static_cast<std::int64_t>(at.rows) * at.lanes;
      for (int i = 0; i < at.rows; ++i) {
        const std::int64_t block = (row - q.first + i) / region.grid.size.q;
        seen[block].add(words + i * groups, lanes);
      }
      decided = may_stop && seen[0].any_of(kAllLanes) && !seen[0].all_of(kAllLanes);
    }
  }
  for (std::int64_t row = rect.row_begin; row < rect.row_end; ++row) {
    const Seen& of_row = seen[row - rect.row_begin];
    if (region.grid.size.q == 1 && region.grid.size.kv == 1) {  // blocks of one element
      for_bit_runs(of_row.any, [&](int begin, int end) {
        region.worker.append(region.row(row), rect.col_begin + begin, rect.col_begin + end,
                             BlockKind::kFull);
      });
      continue;
    }
    for (std::int64_t col = rect.col_begin; col < rect.col_end; ++col) {
      const std::int64_t first = (col - rect.col_begin) * region.grid.size.kv;
      const Words lanes =
          one_block
              ? kAllLanes
              : lanes_between(first, std::min(first + region.grid.size.kv, kv.last + 1 - kv.first));
      if (!of_row.any_of(lanes)) continue;
      region.worker.append(
          region.row(row), col, col + 1,
          of_row.all_of(lanes) ? region.grid.full_kind(row, col) : BlockKind::kPartial);
    }
  }
}

void BlockProver::throw_first_fault(std::span<const Worker> workers) const {
  std::vector<kernels::TileFault> faults;
  for (const Worker& worker : workers) faults.push_back(worker.runner_.fault());
  formula::throw_first_fault(faults);
}

}  // namespace quire::mask
