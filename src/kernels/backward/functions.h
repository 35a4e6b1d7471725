// The primitives of the backward kernel beyond those it shares with prefill (scores, copies, query
// tiles: forward_functions.h), one table per ISA and compute type; the loop over tiles is
// backward.cc. Plain structs: every ISA's object includes this. Kernels layer.
//
// Tiles of P and dS lie as the scores of prefill: [panel][key][16 queries], panels kScorePanelStep
// elements apart. A block is some keys of some panels of a tile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

/// A block: `panels` panels of `rows` keys, and which of its elements are visible: bit first_lane +
/// lane of words[row]; null: all of them.
struct BlockShape {
  int rows = 0, panels = 0, first_lane = 0;
  const uint64_t* words = nullptr;
};

/// Scores, scaled and modified, to weights in place: e^(s - lse). Hidden ones become +0, and so
/// does a lane with an lse of +inf.
template <class T>
struct WeightsArgs {
  BlockShape block;
  T* scores = nullptr;
  const T* lse = nullptr;  // [16 * panels]
};

/// Gradients of weights to gradients of scores, in place: weight * (d_weight - delta). Hidden ones
/// become +0; with `only_weighted`, so do those with weight 0.
template <class T>
struct ScoreGradientsArgs {
  BlockShape block;
  T* gradients = nullptr;
  const T* weights = nullptr;
  const T* delta = nullptr;  // [16 * panels]
  bool only_weighted = false;
};

/// Weights by a formula, in place: each is multiplied by the `inverse` of its lane. Hidden ones
/// become +0, and so does a lane with an inverse of 0.
template <class T>
struct FormulaWeightsArgs {
  BlockShape block;
  T* weights = nullptr;
  const T* inverse = nullptr;  // [16 * panels]
};

/// Gradients of weights by a formula, in place: inverse * (d_weight - delta). Hidden ones become
/// +0, and so does a lane with an inverse of 0.
template <class T>
struct FormulaGradientsArgs {
  BlockShape block;
  T* gradients = nullptr;
  const T *inverse = nullptr, *delta = nullptr;  // [16 * panels]
};

/// gradients *= slopes in place (null: `uniform` is the slope of all); where a gradient is 0 it
/// becomes +0 whatever the slope.
template <class T>
struct ApplySlopesArgs {
  BlockShape block;  // words are not used
  T* gradients = nullptr;
  const T* slopes = nullptr;
  T uniform = 1;
};

/// sums[lane] += gradient * factor, keys ascending; where a gradient is 0 it adds nothing, whatever
/// its factor.
template <class T>
struct AddLaneSumsArgs {
  BlockShape block;  // words are not used
  const T* gradients = nullptr;
  /// Factors of row 0: one for each lane from the block's first on, or one for all; null: 1.
  const T* factors = nullptr;
  ptrdiff_t factor_step = 0;  // from row to row
  bool factor_per_row = false;
  T* sums = nullptr;  // [16 * panels]
};

/// out[key][column] += chains from 0, queries ascending, of weight[key][query] *
/// row[query][column], kChainQueries of the query tile each.
template <class T>
struct AddToKeysArgs {
  const T* weights = nullptr;             // first panel, first key
  int first_panel = 0;                    // of the query tile
  int keys = 0, panels = 0, columns = 0;  // columns: a multiple of 16
  const T* rows = nullptr;                // [16 * panels], row_step apart
  ptrdiff_t row_step = 0;
  T* out = nullptr;  // out_step apart
  ptrdiff_t out_step = 0;
};

/// out[query][column] += one chain from 0, keys ascending, of weight[key][query] *
/// row[key][column].
template <class T>
struct AddToQueriesArgs {
  const ChainRun* runs = nullptr;  // of one chain; ends_chain is ignored
  int run_count = 0;
  const T* weights = nullptr;    // the panel
  int queries = 0, columns = 0;  // queries <= 16, columns a multiple of 16
  const T* rows = nullptr;       // row_step apart
  ptrdiff_t row_step = 0;
  T* out = nullptr;  // out_step apart
  ptrdiff_t out_step = 0;
};

/// to[row][column] = fma(from[row][column], scale, to[row][column]).
template <class T>
struct AddRowsArgs {
  const T* from = nullptr;
  ptrdiff_t from_step = 0;
  int rows = 0, columns = 0;  // columns: a multiple of 16
  T* to = nullptr;
  ptrdiff_t to_step = 0;
  T scale = 1;
};

/// out[lane] = a . b of the lane, dims ascending, in the chains of a score.
template <class T>
struct LaneDotsArgs {
  const T *a = nullptr, *b = nullptr;  // [dims][64]
  int dims = 0, panels = 0;
  T* out = nullptr;  // [16 * panels]
};

template <class T>
struct BackwardFunctions {
  void (*weights)(const WeightsArgs<T>&) noexcept;
  void (*score_gradients)(const ScoreGradientsArgs<T>&) noexcept;
  void (*formula_weights)(const FormulaWeightsArgs<T>&) noexcept;
  void (*formula_gradients)(const FormulaGradientsArgs<T>&) noexcept;
  void (*apply_slopes)(const ApplySlopesArgs<T>&) noexcept;
  void (*add_lane_sums)(const AddLaneSumsArgs<T>&) noexcept;
  void (*add_to_keys)(const AddToKeysArgs<T>&) noexcept;
  void (*add_to_queries)(const AddToQueriesArgs<T>&) noexcept;
  void (*add_rows)(const AddRowsArgs<T>&) noexcept;
  void (*lane_dots)(const LaneDotsArgs<T>&) noexcept;
  /// Whether a row of `columns` (a multiple of 16) numbers is finite throughout.
  bool (*is_finite)(const T* row, int columns) noexcept;
};

}  // namespace quire::kernels
