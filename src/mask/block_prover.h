// BlockProver: the kind of every block of a rectangle of blocks, from the formula. Rectangles are
// classified by interval arithmetic and split while undecided. An undecided one as small as a
// block (or a tile, if blocks are smaller) is evaluated element by element: first its corners,
// then tile by tile until both a visible and a hidden element were seen. Exact for every formula.
// Mask layer.
//
// Rectangles are halved along their longer side, in elements, left before right, so the runs of
// every row come out in ascending order. A causal mask of n x n blocks takes some 6 n
// classifications of 60 ns each.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formula/bound/bound.h"
#include "kernels/tile/tile_runner.h"
#include "mask/block_rows.h"
#include "mask/mask_grid.h"
#include "mask/run_budget.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::mask {

/// What a BlockProver may rely on.
enum class Proof : std::uint8_t {
  kContents,  // shapes and contents of buffers, which it reads completely when it is made
  kShapes,    // shapes only: for few rows, where reading whole buffers would cost more
  kNone,      // every element is evaluated
};

class BlockProver {
 public:
  /// State of one thread.
  class Worker {
   public:
    /// `budget` may be null.
    explicit Worker(const BlockProver& prover, RunBudget* budget = nullptr);
    std::int64_t rectangles = 0, evaluated = 0;
    std::size_t most_steps = 0;  // how many steps are kept
    std::vector<ProofStep> steps;

   private:
    friend class BlockProver;
    void append(RunList& runs, std::int64_t begin, std::int64_t end, BlockKind kind);
    void record(const BlockGrid& grid, const BlockRect& rect, ProofStep::Outcome outcome);

    RunBudget* budget_;
    std::int64_t unpaid_runs_ = 0;
    std::vector<formula::Interval> bounds_;
    Tensor scratch_;
    kernels::TileRunner runner_;
  };

  /// Throws Error for a buffer without data.
  BlockProver(const MaskMod& mod, std::int64_t batch, std::int64_t heads, const BlockGrid& grid,
              Proof proof = Proof::kContents);

  /// Whether the mask varies with the batch or the head at all.
  bool depends_on_b() const { return depends_on_b_; }
  bool depends_on_h() const { return depends_on_h_; }
  /// Whether some element may fault (divide by zero, read outside a buffer).
  bool may_fault() const { return may_fault_; }

  /// Appends the kinds of the blocks in `rect`: those of row r to rows[r - rect.row_begin].
  void prove(std::int64_t b, std::int64_t h, const BlockRect& rect, std::span<RunList> rows,
             Worker& worker) const;
  /// The same for a smaller mask than the prover was made for: its `grid` has the same block size,
  /// and its queries and keys are a subset.
  void prove(std::int64_t b, std::int64_t h, const BlockGrid& grid, const BlockRect& rect,
             std::span<RunList> rows, Worker& worker) const;

  /// Rows of blocks evaluated together: bands of rows should be multiples of it.
  std::int64_t leaf_rows() const { return leaf_rows_; }

  /// Throws the Error of the first visible element that faulted.
  void throw_first_fault(std::span<const Worker> workers) const;

 private:
  struct Region;  // a rectangle being proved

  void split(const Region& region, const BlockRect& rect) const;
  bool corners_differ(const Region& region, const BlockRect& rect) const;
  void evaluate(const Region& region, const BlockRect& rect) const;
  void append_full(const Region& region, const BlockRect& rect) const;

  BlockGrid grid_;
  Formula formula_;  // simplified
  bool depends_on_b_ = false, depends_on_h_ = false;
  bool may_fault_ = false;
  std::int64_t leaf_rows_ = 1, leaf_cols_ = 1;
  std::unique_ptr<formula::Bounder> bounder_;  // null for Proof::kNone
  kernels::TileProgram program_;
};

/// Putting an element into a min/max tree costs about 1 ns, evaluating the rule at a new element
/// 0.2 ns. One new query over 100,000 keys and their document ids: shapes. A chunk of 512 queries
/// over 100,000 keys: contents.
Proof proof_for_append(std::int64_t new_area, std::int64_t buffer_elements);

}  // namespace quire::mask
