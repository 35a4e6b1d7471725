// Rotation of rows by their positions, as queries and keys are read (RopeTables, RotateArgs). Plain
// structs: every ISA's object includes this. Kernels layer.
//
// Order of arithmetic, in compute type. cos and sin of a position p are rows of the caller's
// tables, or, from theta, composed of those of 1024 * (p / 1024), 16 * (p / 16 % 64) and p % 16, in
// this order: (c, s) and (c', s') give c'' = fma(c, c', -(s * s')), s'' = fma(s, c', c * s'). A
// pair (x, y) becomes x' = fma(x, c, -(y * s)), y' = fma(y, c, x * s).
#pragma once
#include <cstddef>
#include <cstdint>

#include "quire/dtype.h"

namespace quire::kernels {

inline constexpr int kRopeLow = 16, kRopeMid = 64;

/// Rows of `half` numbers of compute type. half = 0: nothing is rotated.
struct RopeTables {
  const void *cos = nullptr, *sin = nullptr;  // of every position; null: made from the tables below
  ptrdiff_t cos_step = 0, sin_step = 0;       // elements from position to position
  /// [rows][2][half], cos and sin: of positions 1024 i, 16 i (64 rows) and i (16 rows).
  const void *high = nullptr, *mid = nullptr, *low = nullptr;
  const void* low_columns = nullptr;  // `low` by pairs: [half][2][16]
  int half = 0;
  bool interleaved = false;  // pairs (2i, 2i + 1), else (i, i + half)
};

/// Rotates rows at positions `position`, position + 1, ...; `back`: by the negative angles. Either
/// in place, or from contiguous rows of another type, which are converted.
template <class T>
struct RotateArgs {
  const RopeTables* tables = nullptr;
  T* rows = nullptr;
  ptrdiff_t step = 0;
  int count = 0;
  int64_t position = 0;
  bool back = false;
  const void* from = nullptr;  // null: in place
  DType dtype = DType::f32;    // of `from`
  ptrdiff_t from_step = 0;     // elements from row to row
  int columns = 0;             // of a row of `from`; those after the pairs are only converted
};

}  // namespace quire::kernels
