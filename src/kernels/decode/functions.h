// The primitives of the decode kernel (keys across the lanes), one table per ISA and compute type;
// the loop over tiles is decode.cc. Plain structs: every ISA's object includes this. Kernels layer.
//
// Keys are processed in units of 16. They lie `step` bytes apart in memory or have an address each;
// the numbers of a key are contiguous. Scores of a tile are [row][key], rows kDecodeScoreStep
// apart; weights replace scores in place. O of a row may hold its columns in another order
// (`reorder`).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/coding/functions.h"
#include "kernels/coding/row_coding.h"
#include "kernels/dropout.h"
#include "kernels/rope.h"

namespace quire::kernels {

inline constexpr int kUnitKeys = 16;
inline constexpr int kTileUnits = kTileKeys / kUnitKeys;
/// 16 more than a tile: rows a multiple of 1 KiB apart would share their L1 sets.
inline constexpr ptrdiff_t kDecodeScoreStep = kTileKeys + 16;
/// How many units the prefetch into L2 runs ahead.
inline constexpr int kUnitsAhead = 8;
/// Queries and O are padded to a multiple of this.
inline constexpr int kDecodeColumns = 32;

/// Rows are processed in blocks of 8, 4, 2 or 1: kRowBlock[n] is the size of the next block if n
/// rows are left. The last row of a block may be padding.
constexpr int8_t kRowBlock[] = {0, 1, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8};

/// The most rows of an item: of all items, and of those whose primitives take many
/// (most_decode_rows, decode.h). With 32 rows of O, twice, their queries and 256 keys of 576 f32,
/// an item takes 860 KiB.
inline constexpr int kDecodeRows = 12;
inline constexpr int kManyDecodeRows = 32;
/// More rows than this go to many_scores and many_values, where a call suits these.
inline constexpr int kFewDecodeRows = 8;

/// Rows that many_values computes: blocks of 5 and 6. 9: 10. 13: 15. 16: 16. 19: 20.
constexpr int many_rows(int rows) {
  const int least = (rows + 5) / 6 * 5;
  return rows < least ? least : rows;
}

/// Rows in memory, padding included.
constexpr size_t padded_rows(int rows) {
  const int blocks = rows % 4 == 3 ? rows + 1 : rows, many = many_rows(rows);
  return static_cast<size_t>(rows > kFewDecodeRows && many > blocks ? many : blocks);
}

/// Lanes that the queries of many_scores fill: whole vectors of every ISA.
constexpr int query_lanes(int rows) { return (rows + 15) / 16 * 16; }

/// Rows of queries in memory, whichever primitives take them.
constexpr size_t padded_queries(int rows) {
  return rows > kFewDecodeRows ? static_cast<size_t>(query_lanes(rows)) : padded_rows(rows);
}

/// How keys or values are stored and multiplied.
enum class DecodeKind : uint8_t {
  kOwn,        // in compute type
  kBf16,       // widened; f32 only
  kF16,        // widened; f32 only
  kPairs,      // products of bf16 pairs, where the ISA has them
  kI8,         // codes of one byte under a scale per key, decoded when loaded; f32 on vectors only
  kCodePairs,  // codes that are exact in bf16, as kPairs; scales multiply scores and weights
  kIntegers,   // codes of i8 times integers of 16 bits; scales multiply scores and weights
  kIntegerRows,   // the same with integers of 16 bits that other codes became
  kIntegerCodes,  // the same with such codes, which become integers as they are loaded
  kTiles          // bf16, in the order of tile registers (attention_order.h); queries are widened
};

struct DecodeUnit {
  const char* at = nullptr;  // its first key, even if that is not wanted
  int place = 0;             // which unit of the tile
  int begin = 0, end = 0;    // values: keys that may be read; of pairs even, or all
  bool begins_chain = true;  // values: no earlier unit belongs to the same chain
  bool ends_chain = true;    // no later unit does
  // Null, or the address of each of the 16 keys.
  const char* const* rows = nullptr;
  const float* scales = nullptr;  // codes: scales of the 16 keys
};

/// Rows of a unit to prefetch. Units of keys and values form one sequence.
struct UnitAhead {
  const char* at;
  ptrdiff_t step;
  int lines;                // of 64 bytes in a row; 0: nothing to prefetch
  const char* const* rows;  // address of each row, if they are not `step` apart from `at` on
};

/// scores[row][key] = key[d] * query[d] summed over d in chains of chain_dims, times scale if
/// `natural`.
template <class T>
struct UnitScoresArgs {
  DecodeKind kind = DecodeKind::kOwn;
  RowCoding coding;  // kCodePairs, kIntegerCodes
  IntegerRules by;   // kIntegerCodes: of the tile's keys
  const DecodeUnit* units = nullptr;
  int unit_count = 0;
  ptrdiff_t step = 0;  // bytes from key to key
  /// ahead[i] is unit i itself; at least unit_count + kUnitsAhead of them.
  const UnitAhead* ahead = nullptr;
  bool prefetches = true;  // false: there is nothing in `ahead`
  int rows = 0, dims = 0;
  /// For each block of rows (kRowBlock) [query_step][rows of the block]: T, or 32-bit pairs. The
  /// dims are padded with -0, which adds nothing to a chain, not even to one that is -0. For
  /// kIntegers [row][query_step] integers of 16 bits, padded with 0. many_scores takes
  /// [query_step][query_lanes].
  const void* queries = nullptr;
  ptrdiff_t query_step = 0;
  const T* row_scales = nullptr;  // [rows], of kIntegers: what sums are multiplied by
  bool natural = false;
  T scale = 0;
  T* scores = nullptr;
  /// Not null: keys are rotated first (may_fuse_rope); that at place 0 is at `position`.
  const RopeTables* rope = nullptr;
  int64_t position = 0;
};

/// The most pairs of dims of keys that are rotated where scores are taken.
inline constexpr int kMostFusedPairs = 64;
/// Whether keys of `dims` dims can be: on ISAs with vectors, if all their dims are rotated, by
/// halves that are a chain each, by angles from theta.
constexpr bool may_fuse_rope(const RopeTables& rope, int dims) {
  return rope.half > 0 && !rope.interleaved && rope.cos == nullptr && dims % 32 == 0 &&
         2 * rope.half == dims && rope.half <= kMostFusedPairs &&
         rope.half == chain_dims(dims, false);
}

/// Turns the scores of one row into weights, in place. Updates m and l; returns the factor for O.
template <class T>
struct RowSoftmaxArgs {
  T* scores = nullptr;
  int unit_begin = 0, unit_end = 0;  // units outside are hidden
  int keys = 0;                      // of the tile
  const uint64_t* words = nullptr;   // bit k of word w: key 64 w + k is visible; null: all are
  T exponent_factor = 1;             // attention_order.h
  T *m = nullptr, *l = nullptr;
  uint16_t* pair_weights = nullptr;     // [256]: gets them in bf16, too; null: not wanted
  const float* value_scales = nullptr;  // [256]: kCodePairs: multiply the weights before rounding
};

/// The same for a few keys of a tile that lie next to each other, for all rows.
template <class T>
struct FewSoftmaxArgs {
  const T* scores = nullptr;  // [row][kDecodeScoreStep], from the first of the keys on
  T* weights = nullptr;       // the same; whole units are written, 0 where there is no key
  int rows = 0, keys = 0;
  const int16_t* places = nullptr;  // [keys]: where in the tile each is
  // Two words a row, from seen + row * seen_step on. Bit i: the row sees key i; none after the
  // keys.
  const uint64_t* seen = nullptr;
  int seen_step = 0;
  bool takes_weights = false;  // scores are weights by a formula, as for take_weights
  T exponent_factor = 1;
  T *m = nullptr, *l = nullptr, *factors = nullptr;  // [rows]; gets the factors for O
};

/// Applies dropout to the weights of one row, in place: each becomes 0 or is multiplied by the
/// rule's scale.
template <class T>
struct DropRowArgs {
  T* weights = nullptr;              // the tile's first key
  int unit_begin = 0, unit_end = 0;  // the rest is not touched
  const DropoutRule* rule = nullptr;
  DropoutPlace place;
  uint16_t* pair_weights = nullptr;  // as in RowSoftmaxArgs, which need not write them then
  const float* value_scales = nullptr;
};

/// The weights of one row, times their values' scales, as integers of 16 bits.
struct CodeWeightsArgs {
  const float* weights = nullptr;
  int unit_begin = 0, unit_end = 0;
  const float* value_scales = nullptr;  // [256]
  int shift = 0;                        // attention_order.h
  int16_t* to = nullptr;                // [256]
};

/// Adds to O[row], for each chain of chain_keys keys, the sum of weight[key] * value[key], keys
/// ascending, from 0. A chain that has not ended is kept in `chain`.
template <class T>
struct UnitValuesArgs {
  DecodeKind kind = DecodeKind::kOwn;
  RowCoding coding;  // kCodePairs, kIntegerCodes
  IntegerRules by;   // kIntegerCodes
  const DecodeUnit* units = nullptr;
  int unit_count = 0;
  ptrdiff_t step = 0;
  const UnitAhead* ahead = nullptr;  // as in UnitScoresArgs
  bool prefetches = true;
  int rows = 0, columns = 0;               // columns that exist
  const T* weights = nullptr;              // [row][kDecodeScoreStep]
  const uint16_t* pair_weights = nullptr;  // pairs: [row][kDecodeScoreStep]
  const T* row_scales = nullptr;           // as in UnitScoresArgs
  T* out = nullptr;                        // [row][out_step]
  T* chain = nullptr;  // as out (kIntegers: i32 in place of T); kTiles: see tile_chain_size
  ptrdiff_t out_step = 0;
};

/// kTiles: three planes of padded rows, which hold the sums of a chain and those of the even and
/// the odd keys of the current step; then the number of that step.
constexpr size_t tile_chain_size(int rows, size_t out_step) {
  return 3 * padded_rows(rows) * out_step + 16;
}

template <class T>
struct DecodeFunctions {
  void (*scores)(const UnitScoresArgs<T>&) noexcept;
  T (*softmax)(const RowSoftmaxArgs<T>&) noexcept;
  /// For weights that a formula gave: hidden ones and -inf become 0, m becomes 0; returns 1.
  /// Ignores exponent_factor.
  T (*take_weights)(const RowSoftmaxArgs<T>&) noexcept;
  /// Returns whether any factor is other than 1.
  bool (*few_softmax)(const FewSoftmaxArgs<T>&) noexcept;
  void (*drop)(const DropRowArgs<T>&) noexcept;
  void (*values)(const UnitValuesArgs<T>&) noexcept;
  /// The same two for kFewDecodeRows + 1 to kManyDecodeRows rows; null where there are none.
  void (*many_scores)(const UnitScoresArgs<T>&) noexcept;
  void (*many_values)(const UnitValuesArgs<T>&) noexcept;
  /// x[i] *= factor
  void (*rescale)(T* x, int count, T factor) noexcept;
  /// kIntegers. `count` numbers, a multiple of kDecodeColumns, as integers of 16 bits less `shift`.
  /// Both return what takes the integers back.
  float (*code_numbers)(const float* from, int count, int shift, int16_t* to) noexcept;
  float (*code_weights)(const CodeWeightsArgs&) noexcept;
  /// Puts the columns of an O in order. `count` is a multiple of kDecodeColumns; not in place.
  void (*reorder)(DecodeKind kind, const T* from, int count, T* to) noexcept;
  T (*log)(T x) noexcept;
  /// The exponential of the softmax.
  T (*exp2)(T x) noexcept;
};

}  // namespace quire::kernels
