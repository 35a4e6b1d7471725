// The primitives of the prefill kernel (queries across the lanes), one table per ISA and compute
// type; the loop over tiles is prefill.cc. Plain structs: every ISA's object includes this. Kernels
// layer.
//
// A query tile has up to 64 queries: 4 panels of 16 lanes. Scores of a tile lie [panel][key][16
// queries], panels kScorePanelStep elements apart, so that the products write and read whole cache
// lines; weights replace scores in place. The state of a query tile: m[64], l[64] and
// O[64][columns] with columns = value dims rounded up to 16.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/coding/functions.h"
#include "kernels/dropout.h"
#include "kernels/key_weights.h"
#include "kernels/rope.h"
#include "quire/dtype.h"

namespace quire::kernels {

inline constexpr int kQueryTile = 64;
inline constexpr int kPanel = 16;
inline constexpr int kQueryPanels = kQueryTile / kPanel;
/// 64 more than 256 x 16: panels a multiple of 4 KiB apart would share their L1 sets.
inline constexpr ptrdiff_t kScorePanelStep = kTileKeys * kPanel + 64;

/// Rows of a tensor of any float type. Steps in elements.
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  ptrdiff_t row_step = 0, column_step = 1;
  int rows = 0, columns = 0;
};

/// out[column][lane], 64 lanes a column: rows become lanes; lanes [rows, 16 * panels) are 0.
template <class T>
struct LoadQueriesArgs {
  RowsView from;
  int panels = kQueryPanels;
  T* out = nullptr;
};

/// out[row][out_step]: rows in compute type; columns [from.columns, out_columns) are 0.
template <class T>
struct CopyRowsArgs {
  RowsView from;
  T* out = nullptr;
  ptrdiff_t out_step = 0;
  int out_columns = 0;
};

/// Scores: out[panel][row][lane] = key[row][d] * query[d][lane] summed over d, in chains of
/// chain_dims. Element: T, or uint32_t for pairs (d, d + 1); `dims` then counts pairs.
template <class T, class Element = T>
struct ScoresArgs {
  const Element* keys = nullptr;  // rows key_step elements apart
  ptrdiff_t key_step = 0;
  int rows = 0, dims = 0, panels = 0;
  const Element* queries = nullptr;  // [dims][64], from the first of the panels on
  T* scores = nullptr;               // first panel, first row
  T* max = nullptr;                  // [16 * panels], raised by all of them; null: not kept
  /// [rows]: what the sums of each row, of codes, are multiplied by; null: they are not.
  const T* row_scales = nullptr;
  const T* lane_scales = nullptr;  // [16 * panels]: the same of each query; of integers only
  bool scaled = false;             // natural form: the product with `scale` is stored
  T scale = 1;
};

/// Hidden elements become -inf; `max` is raised by the visible ones. Bit first_lane + i of
/// words[row] is for lane i of the first panel.
template <class T>
struct MaskScoresArgs {
  T* scores = nullptr;
  int rows = 0, panels = 0, first_lane = 0;
  const uint64_t* words = nullptr;
  T* max = nullptr;
};

/// Turns scores of one panel into weights, in place, for the groups of 16 keys in `groups` (bit g:
/// keys 16 g ..). Updates m and l; `factor` gets what O must be multiplied by.
template <class T>
struct SoftmaxArgs {
  T* scores = nullptr;  // the panel, key 0 of the tile
  uint32_t groups = 0;
  int rows = 0;            // keys in the tile: the last group may be short
  T exponent_factor = 1;   // attention_order.h
  const T* max = nullptr;  // [16], of these scores
  T* m = nullptr;          // [16]
  T* l = nullptr;
  T* factor = nullptr;
};

/// Applies dropout to the weights of one panel, in place: each becomes 0 or is multiplied by the
/// rule's scale.
template <class T>
struct DropPanelArgs {
  T* weights = nullptr;  // the panel, key 0 of the tile
  uint32_t groups = 0;   // as in SoftmaxArgs
  int rows = 0;
  const DropoutRule* rule = nullptr;
  DropoutPlace place;  // q_idx: of lane 0
};

/// Consecutive keys, as rows of weights and of values. A chain continues through all runs up to one
/// that ends it.
struct ChainRun {
  int weight_row = 0, value_row = 0, rows = 0;
  bool ends_chain = true;
};

/// Adds to O[query][column], for each chain, the sum of weight[key][query] * value[key][column],
/// keys ascending, from 0. Element: T, or uint32_t for pairs of keys (2i, 2i + 1); each pair is a
/// row then.
template <class T, class Element = T>
struct AccumulateArgs {
  const ChainRun* runs = nullptr;  // at least one; the last ends a chain
  int run_count = 0;
  const Element* weights = nullptr;  // the panel: [row][16]
  const Element* values = nullptr;   // rows value_step elements apart, `columns` of them readable
  ptrdiff_t value_step = 0;
  int queries = 0, columns = 0;  // queries <= 16, columns a multiple of 16
  T* out = nullptr;              // rows out_step elements apart
  ptrdiff_t out_step = 0;
  const T* factor = nullptr;         // [16]: O is multiplied by it first; null: there is no O yet
  const T* weight_scales = nullptr;  // [16]: what sums are multiplied by; of integers only
};

/// Weights of a panel, [key][16] floats, to pairs [key / 2][16], in place (a uint32_t lies where a
/// float was), run by run; an odd last key of a run pairs with 0.
struct PairWeightsArgs {
  float* weights = nullptr;  // the panel
  const ChainRun* runs = nullptr;
  int run_count = 0;
  const float* value_scales = nullptr;  // of codes: factors of each key's weights; or null
  float* scales = nullptr;  // [16]: gets AccumulateArgs::weight_scales; of integers only
  int shift = 0;            // attention_order.h; of integers only
};

/// Queries to pairs of integers.
struct CodeQueriesArgs {
  const float* queries = nullptr;  // [dims][64], as load_queries leaves them
  int dims = 0, panels = 0;        // dims: even
  uint32_t* pairs = nullptr;       // [dims / 2][64]
  float* scales = nullptr;         // [64]: gets ScoresArgs::lane_scales
  int shift = 0;                   // attention_order.h
};

/// Folds the state of a split into that of the splits before it, row by row.
template <class T>
struct FoldArgs {
  T *m = nullptr, *l = nullptr, *o = nullptr;  // changed
  const T *split_m = nullptr, *split_l = nullptr, *split_o = nullptr;
  int queries = 0, columns = 0;
  ptrdiff_t step = 0;     // of both O
  T exponent_factor = 1;  // attention_order.h
};

/// out = fma(O, factor / l, +0) in the output's type; 0 where l is 0. Returns a bit for each row
/// that is not finite.
template <class T>
struct FinishArgs {
  const T *l = nullptr, *o = nullptr;
  ptrdiff_t step = 0;
  int queries = 0, columns = 0;  // columns: those that exist
  const T* factor = nullptr;     // of every row; null: 1
  void* out = nullptr;
  DType dtype = DType::f32;
  ptrdiff_t row_step = 0, column_step = 1;
};

/// The sums of an indexer: sums[lane] = fma(weights[row], relu(score[row][lane]), sums[lane]), row
/// after row. relu keeps NaN.
template <class T>
struct WeighHeadsArgs {
  const T* scores = nullptr;  // first panel, first row
  int rows = 0, panels = 0;
  const T* weights = nullptr;  // [rows]
  T* sums = nullptr;           // [16 * panels]
};

template <class T>
struct ForwardFunctions {
  void (*load_queries)(const LoadQueriesArgs<T>&) noexcept;
  void (*copy_rows)(const CopyRowsArgs<T>&) noexcept;
  void (*scores)(const ScoresArgs<T>&) noexcept;
  void (*mask_scores)(const MaskScoresArgs<T>&) noexcept;
  void (*softmax)(const SoftmaxArgs<T>&) noexcept;
  /// For weights that a formula gave: -inf becomes 0, m becomes 0, the factors become 1. Ignores
  /// max and exponent_factor.
  void (*take_weights)(const SoftmaxArgs<T>&) noexcept;
  void (*rotate)(const RotateArgs<T>&) noexcept;
  void (*drop)(const DropPanelArgs<T>&) noexcept;
  void (*accumulate)(const AccumulateArgs<T>&) noexcept;
  void (*fold)(const FoldArgs<T>&) noexcept;
  uint64_t (*finish)(const FinishArgs<T>&) noexcept;
  void (*weigh_heads)(const WeighHeadsArgs<T>&) noexcept;
  void (*panel_weights)(const PanelWeightsArgs<T>&) noexcept;
  void (*row_weights)(const RowWeightsArgs<T>&) noexcept;
};

/// A product of tile registers: two groups of 16 rows by two of 16 columns, 32 numbers per step.
/// Steps between rows and between groups are in bytes.
struct TileProduct {
  const char* a = nullptr;  // 64 bytes of each row a step
  ptrdiff_t a_row = 0, a_next = 0;
  const char* b = nullptr;  // 16 rows of 16 pairs a step
  ptrdiff_t b_row = 0, b_next = 0;
  int steps = 0;
  char* out = nullptr;  // 16 rows of 16 floats, side by side
  ptrdiff_t a_out = 0, b_out = 0;
};

/// Products that are done in order, a few steps at a time, while something else is computed. Until
/// all are done, no other function on tiles may be called.
struct TileProducts {
  static constexpr int kMost = 2 * (kTileKeys / 32 + kMostHeadDim / 32);
  TileProduct list[kMost];
  int count = 0;
  int at = 0, step = 0;  // the current product and its next step
};

/// From panel to panel of weights in bf16, [key / 2][16], in pairs.
inline constexpr ptrdiff_t kPairPanelStep = kTileKeys / 2 * kPanel + 64;

/// O[column][lane] = O * factor + sums, of one panel; without factors the sums alone.
struct AddSumsArgs {
  const float* sums = nullptr;    // [columns][16]
  const float* factor = nullptr;  // [16]
  int columns = 0;
  float* out = nullptr;
};

/// bf16 products of tile registers. O of a panel lies [column][16 queries] until `rows`.
struct PairTiles {
  /// Completes the remaining products and empties the list.
  void (*run)(TileProducts& products) noexcept;
  /// Finishes scores: multiplies by the scale, if `scaled`, and raises the maximum.
  void (*finish_scores)(const ScoresArgs<float, uint32_t>&) noexcept;
  /// As ForwardFunctions::softmax, but the weights go to pairs, [key / 2][16], and products advance
  /// meanwhile. Keys that do not exist, and scores of groups that do, may be overwritten.
  void (*softmax)(const SoftmaxArgs<float>&, uint32_t* pairs, TileProducts& products) noexcept;
  void (*add_sums)(const AddSumsArgs&) noexcept;
  /// For one panel; ignores `queries` and `step`.
  void (*fold)(const FoldArgs<float>&) noexcept;
  /// out[query][column] = from[column][query], 16 queries of a panel, rows `columns` apart.
  void (*rows)(const float* from, int columns, float* out) noexcept;
};

/// Products of pairs, of bf16 or of integers of 16 bits: 32-bit elements hold (even, odd), the even
/// one low.
struct PairFunctions {
  /// Of bf16 only. out[d / 2][lane], 64 lanes a row: pairs along d; an odd end pairs with 0; lanes
  /// [rows, 16 * panels) are 0.
  void (*load_queries)(const RowsView& from, int panels, uint32_t* out) noexcept = nullptr;
  /// Of bf16 only. out[row][d / 2]: pairs along d; an odd end pairs with 0. For keys that cannot be
  /// read in place: column_step other than 1, an odd number of columns, an odd row_step.
  void (*copy_rows)(const RowsView& from, uint32_t* out, ptrdiff_t out_step) noexcept = nullptr;
  /// Of integers only.
  void (*code_queries)(const CodeQueriesArgs&) noexcept = nullptr;
  /// Codes to the numbers of 16 bits that are multiplied, or for tiles of integers to bytes; scales
  /// are not read. Null for tiles of bf16.
  void (*widen_codes)(const DecodeRowsArgs<uint16_t>&) noexcept = nullptr;
  /// Keys need not be aligned to 4 bytes.
  void (*scores)(const ScoresArgs<float, uint32_t>&) noexcept;
  /// out[key / 2][column]: rows 2i and 2i + 1 of `from` interleaved, later columns are 0; an odd
  /// last row pairs with 0. For tiles out[column][key / 2], or of bytes [key / 4], zeros up to a
  /// whole step.
  void (*pair_values)(const RowsView& from, uint32_t* out, ptrdiff_t out_step,
                      int out_columns) noexcept;
  /// As ForwardFunctions::softmax, but the weights go to pairs, [key / 2][16]; an odd last key
  /// pairs with 0. Null: only softmax and then pair_weights.
  void (*softmax)(const SoftmaxArgs<float>&, uint32_t* pairs) noexcept = nullptr;
  void (*pair_weights)(const PairWeightsArgs&) noexcept;
  void (*accumulate)(const AccumulateArgs<float, uint32_t>&) noexcept;
  /// Rows of pairs along d are padded with zeros to a multiple of this: 1, or the 16 pairs of a
  /// step of a tile register (32 of integers).
  int step = 1;
  /// Of values from column to column, where `pair_values` turns them; 0: rows of whole panels.
  int turned_step = 0;
  /// Where products are those of tile registers. Call on each thread: `begin` before the first
  /// function that multiplies, `end` after the last, which releases the tiles.
  void (*begin)() noexcept = nullptr;
  void (*end)() noexcept = nullptr;
  /// Set where bf16 products are those of tile registers; `accumulate` is null then.
  const PairTiles* tiles = nullptr;
};

}  // namespace quire::kernels
