// GradientRunner: the score mod inside a tile of the backward pass. From scaled scores to modified
// ones (the forward's bits) and the slopes d(modified)/d(score); and from the gradient of the
// modified scores to the gradients of captured buffers. One runner per thread; it owns nothing:
// program, functions, targets and scratch are the caller's. Plain C++. Kernels layer.
//
// Order of calls, for each item (chunk of keys of a key head) and each (b, query head) it serves:
//   begin_head(...)
//     for query tiles, for key tiles:  begin(coords), then in any cut along rows
//       apply(...)    scores -> modified scores, slopes
//       collect(...)  d_modified -> private sums
//   end_head()        waits for its turn, then adds the private sums to the gradients
// Ordinals count 0, 1, 2, ... over all heads of all items of a run without a gap; items are claimed
// in ascending order, so the head that is waited for is always under way. A query tile is visited
// once per head, with all its key tiles. What is added up when is decided by ordinals and tiles
// alone: the bits do not depend on threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/backward/gradient_memory.h"
#include "kernels/backward/gradient_merge.h"
#include "kernels/backward/gradient_program.h"
#include "kernels/kernel_table.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// Scratch a thread needs, aligned to 64 bytes.
std::size_t gradient_scratch_bytes(const GradientProgram& program, const GradientSizes& sizes);

class GradientRunner {
 public:
  GradientRunner(const GradientProgram& program, const KernelTable& table,
                 const GradientTargets& targets, const GradientSizes& sizes,
                 void* scratch) noexcept;

  void begin_head(const GradientHead& head) noexcept;
  /// Prefill's tile: queries across the lanes (at most 64), keys as rows (at most the program's
  /// max_rows).
  void begin(const TileCoords& coords) noexcept;

  /// Scaled scores of rows [row_begin, row_end) to modified ones, hidden ones -inf. `visible`: a
  /// word per row, from row 0 of the tile on, or null. If program.slope is SlopeKind::kElement,
  /// `slopes` gets the slopes, unspecified (NaN too) where hidden; else it is not written.
  void apply(const ScoreTile& scores, const ScoreTile& slopes, int row_begin, int row_end,
             const uint64_t* visible) noexcept;
  /// The slope of all elements of the tile, if program.slope is kUniform.
  double uniform_slope() const noexcept;

  /// Adds what rows [row_begin, row_end), panels [panel_begin, panel_end) contribute. d_modified =
  /// P * (dP - delta + d_lse), exactly 0 where hidden, where P is 0 and beyond the tile's edge:
  /// such an element adds nothing, whatever its factors. Its panels are kScorePanelStep apart. Only
  /// after apply() of these rows. Does nothing if the program has no sites.
  void collect(const ScoreTile& d_modified, int row_begin, int row_end, int panel_begin,
               int panel_end) noexcept;

  void end_head() noexcept;

  /// Over all tiles since construction; as TileRunner's.
  const TileFault& fault() const noexcept { return runner_.fault(); }

 private:
  void record_indices(size_t i) noexcept;
  template <class T>
  void load_others(size_t i, bool new_queries) noexcept;
  template <class T>
  void store_slopes(const ScoreTile& slopes, int row_begin, int row_end) const noexcept;
  template <class T>
  void collect_site(size_t i, const GradientBlock& block) noexcept;
  template <class T>
  void add_heads_sums() noexcept;
  void take_query_turn() noexcept;
  void pass_query_turn() noexcept;

  const GradientProgram& program_;
  const KernelTable& table_;
  const GradientTargets& targets_;
  GradientMemory memory_;
  TileRunner runner_;
  bool waits_ = false;   // a site has private sums
  bool shares_ = false;  // a site is kShared
  GradientHead head_;
  TileCoords coords_;
  int64_t query_ = -1, key_ = 0;  // of the tile's first, counted from the head's first
  bool holds_turn_ = false;       // of the query tile
};

}  // namespace quire::kernels
