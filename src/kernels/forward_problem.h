// One forward call as the kernels see it: tensors as addresses and steps, keys as spans, visible
// keys as runs, mods as tile programs. The plan fills it in; kernels never ask a layout or a mask.
// Plain data. Kernels layer.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/coding/row_coding.h"
#include "kernels/rope.h"
#include "kernels/tile/tile_functions.h"
#include "kernels/tile/tile_program.h"
#include "quire/dtype.h"

namespace quire::kernels {

struct KernelTable;

/// Keys [begin, end) of a sequence, one after the other in memory: row `key` is at offset + (key -
/// begin) * row step. An item's spans are ascending, without gaps, and cover all tiles of keys in
/// which one of its rows sees something.
struct KeySpan {
  int64_t begin = 0, end = 0;
  int64_t key_offset = 0, value_offset = 0;  // of key `begin`, in elements from the tensors' data
  int64_t key_scale_offset = 0, value_scale_offset = 0;  // in scales; of codes only
};

/// Keys [begin, end) that a row of queries may see: all of them, or those the mask program says.
/// Lists are ascending and do not overlap; what is in no run is hidden and never read.
struct KeyRun {
  int64_t begin = 0, end = 0;
  bool full = false;
};
struct KeyRuns {
  const KeyRun* runs = nullptr;
  int64_t count = 0;
};

/// The keys a row has chosen, ascending, each once: of the keys that its runs and the mask show,
/// the row sees only these. count < 0: the row has no such list.
struct KeyList {
  const int32_t* keys = nullptr;
  int64_t count = -1;

  bool is_choice() const { return count >= 0; }
  /// The first chosen key >= `key`; one past the last if there is none.
  const int32_t* from(int64_t key) const noexcept {
    return std::lower_bound(keys, keys + count, key);
  }
};

/// A float tensor whose rows are found by an offset. Steps in elements.
struct ForwardTensor {
  DType dtype = DType::f32;
  ptrdiff_t row_step = 0, column_step = 1;
};

/// Tile programs for one orientation. Null: no such mod.
struct ForwardPrograms {
  const TileProgram* score = nullptr;  // score mod without mask; its input is already scaled
  const TileProgram* mask = nullptr;   // mask only
};

/// Drops weights at random after the row sum was taken, each with probability p; (seed, b, h,
/// q_idx, kv_idx) alone decide which. The others are divided by 1 - p. p = 0: no dropout.
struct Dropout {
  double p = 0;
  uint64_t seed = 0;
};

/// Where the weights of keys come from.
enum class WeightRule : uint8_t {
  kSoftmax,
  kFormula,     // the score program gives weights
  kFormulaSum,  // as kFormula, then divided by their sum
};

/// The final factor of a row's weights: 1 for kFormula, else 1 / `sum`, or 0 where the row's final
/// sum is 0 (nothing is visible, or nothing has weight).
template <class T>
T weight_factor(WeightRule rule, T sum) {
  if (rule == WeightRule::kFormula) return 1;
  return sum == 0 ? T{0} : 1 / sum;
}

/// Keeps rows as running states instead of outputs (row_states.h), in the order of lse.
struct RowStates {
  void* data = nullptr;  // null: rows are finished and outputs written
  bool resumes = false;  // states hold earlier keys already
  int64_t splits = 1;    // states of a row: 1, or one for each of its splits
  bool by_split = false;
};

/// Constant over all items of a run.
struct ForwardCall {
  const KernelTable* table = nullptr;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  void* lse = nullptr;         // in compute type, or null
  void* max_scores = nullptr;  // in compute type, natural units, or null
  int64_t stat_step = 1;       // of lse and max_scores, from row to row
  // The final maximum (in the form of the scores) and sum of every row, laid out as lse; null: not
  // kept.
  void *row_max = nullptr, *row_sum = nullptr;
  RowStates states;
  ForwardTensor q_rows, k_rows, v_rows, out_rows;
  RowCoding k_coding, v_coding;  // codes: k_rows and v_rows count bytes, columns side by side
  /// Rope over keys that are codes of rows rotated by coding/rotate.h: the block size of that
  /// rotation. It is undone when keys are read, so queries are not rotated that way.
  int k_mixed = 0;
  RowScales k_scales, v_scales;
  int dims = 0, value_dims = 0;
  double scale = 1;
  bool f64 = false;  // compute type
  bool natural =
      false;  // form of the softmax (attention_order.h): a score mod, or not is_scaled(scale)
  bool pairs = false;     // products of pairs: of bf16, or of codes
  bool integers = false;  // of codes as integers (attention_order.h)
  bool chooses = false;   // rows have lists of chosen keys
  // Latent keys: k and v begin at the same address with the same steps, so that a value is the
  // first columns of its key's row wherever a span has the same offsets for both.
  bool v_in_k = false;
  Dropout dropout;
  /// Per query head, in compute type, or null: a logit that takes part in the sum of weights and
  /// has no value (row_end.h).
  const void* sinks = nullptr;
  WeightRule weights = WeightRule::kSoftmax;  // formulas are always natural
  RopeTables rope;
  bool lse_with_sinks = false;  // lse, and its gradient in the backward pass, include the sinks
  ForwardPrograms prefill;      // queries across the lanes, keys as rows
  ForwardPrograms decode;       // keys across the lanes, rows by lists of h and q_idx
};

/// The keys of one (batch, key head).
struct KeySequence {
  const KeySpan* spans = nullptr;
  int64_t span_count = 0;
  int64_t length = 0;
};

/// One query row: where it is, and what it may see.
struct QueryRow {
  int64_t b = 0, h = 0, q_idx = 0;
  int64_t q_offset = 0, out_offset = 0;  // elements
  int64_t stat_offset = 0;               // into lse and max_scores
  KeyRuns visible;                       // count < 0: everything
  KeyList chosen = {};
  void* kept_scores = nullptr;  // [keys of the sequence] in compute type: where its scores go
};

}  // namespace quire::kernels
