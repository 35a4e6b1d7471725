// The weights that queries gave to keys, and their entropy: optional outputs of a call, computed
// from scores and the finished states of rows. One definition for both orientations. Kernels layer.
//
// Order of arithmetic: with M and L the final maximum and sum of a row (attention_order.h), c the
// exponent factor: p = exp2((s - M) * c), weight = p * (1 / L); a hidden key has 0, a row without a
// visible key 0 everywhere. A key's weight over queries: 16 partial sums from +0, by query mod 16
// counted from the call's first, fma(p, 1 / L, sum), queries ascending; then a tree +8 +4 +2 +1.
// Entropy: for each tile of 256 keys 16 partial sums from +0, by key mod 16, of fma(p * (1 / L), s
// - M, sum), then a tree; tiles of a split are added up from 0, ascending, and so are splits; the
// entropy is log(L) minus that sum, which scaled form multiplies by the scale. Where a formula
// gives the weights, p is the score, or 0 where that is -inf, and 1 / L is 1 unless weights are
// divided by their sum; there is no entropy.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_order.h"

namespace quire::kernels {

/// Queries across the lanes: one panel of scores, for the groups of 16 keys in `groups`.
template <class T>
struct PanelWeightsArgs {
  const T* scores = nullptr;  // the panel, key 0 of the tile; hidden ones -inf
  uint32_t groups = 0;
  int rows = 0;
  bool is_formula = false;  // scores are weights
  T exponent_factor = 1;
  const T *m = nullptr, *inverse = nullptr;  // [16]: M, 1 / L
  const T* counted = nullptr;  // [16]: 1 / L of the queries that count for keys, else 0
  T* sums = nullptr;           // [rows][16], added to; null: not wanted
  T* entropy = nullptr;        // [16], the tile's sum is added; null: not wanted
};

/// Keys across the lanes: one row, `keys` scores from a tile's first key on.
template <class T>
struct RowWeightsArgs {
  T* scores = nullptr;  // hidden ones -inf; become weights
  int64_t keys = 0;
  bool is_formula = false;  // scores are weights
  T exponent_factor = 1, m = 0, inverse = 0;
  T* entropy = nullptr;  // the sum over all its keys, split by split; null: not wanted
};

}  // namespace quire::kernels
