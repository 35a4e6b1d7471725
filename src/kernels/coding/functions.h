// The primitives that decode and encode rows of keys and values, one table per ISA. Plain structs:
// every ISA's object includes this. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/coding/row_coding.h"

namespace quire::kernels {

/// Decodes codes to rows of T; further columns become 0.
template <class T>
struct DecodeRowsArgs {
  RowCoding coding;
  const char* codes = nullptr;
  ptrdiff_t code_step = 0;       // bytes from row to row
  const char* scales = nullptr;  // of the first row, side by side
  ptrdiff_t scale_step = 0;      // bytes from row to row
  int rows = 0, columns = 0;
  T* out = nullptr;
  ptrdiff_t out_step = 0;
  int out_columns = 0;
};

/// Rows of f32 to codes. Scales of rows and groups are found and written (f32 of rows, f16 of
/// groups); those of channels (group 1), or of a whole head (`given`), are read.
struct EncodeRowsArgs {
  RowCoding coding;
  const float* from = nullptr;
  ptrdiff_t from_step = 0;  // numbers from row to row
  int rows = 0, columns = 0;
  bool given = false;
  char* codes = nullptr;
  ptrdiff_t code_step = 0;
  char* scales = nullptr;
  ptrdiff_t scale_step = 0;
};

/// How rows of codes become integers (attention_order.h), a row after the other: for each group of
/// channels the multiplier and the offset, twice each in 32 bits; and what takes a row's integers
/// back. Written for up to 15 rows more than asked for. Where each channel has a scale for all
/// rows, multipliers are [channel] of 16 bits.
struct IntegerRules {
  int32_t *multipliers = nullptr,
          *offsets = nullptr;  // [group][step]; offsets if codes are shifted
  float* scales = nullptr;     // NaN if a scale is not finite
  ptrdiff_t step = 0;
};

/// The same from a later row on.
inline IntegerRules rules_from(const IntegerRules& rules, const RowCoding& coding, int row) {
  return {.multipliers = rules.multipliers + (coding.group == 1 ? 0 : row),
          .offsets = rules.offsets + row,
          .scales = rules.scales + row,
          .step = rules.step};
}

struct FindIntegersArgs {
  RowCoding coding;
  const char* scales = nullptr;  // of the first row; codes in blocks: its first block
  ptrdiff_t scale_step = 0;      // bytes from row to row
  int rows = 0, columns = 0;
  IntegerRules to;
};

struct IntegerRowsArgs {
  RowCoding coding;
  const char* codes = nullptr;
  ptrdiff_t code_step = 0;  // bytes from row to row
  int rows = 0, columns = 0;
  IntegerRules by;  // from the first of the rows on
  int16_t* out = nullptr;
  ptrdiff_t out_step = 0;
  int out_columns = 0;  // further ones become 0
};

struct CodingFunctions {
  void (*decode_f32)(const DecodeRowsArgs<float>&) noexcept;
  void (*decode_f64)(const DecodeRowsArgs<double>&) noexcept;
  /// Returns the first row with a number that has no code: NaN, infinity, or so large that a scale
  /// in f16 overflows. It and the rows after it are still written: their scales are NaN where rows
  /// or groups have their own, so that they decode to NaN. `rows` if there is none.
  int (*encode)(const EncodeRowsArgs&) noexcept;
  /// Rows of codes as integers of 16 bits, in two steps.
  void (*find_integers)(const FindIntegersArgs&) noexcept;
  void (*integer_rows)(const IntegerRowsArgs&) noexcept;
};

}  // namespace quire::kernels
