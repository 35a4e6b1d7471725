// Outputs on tile registers: for each panel O[column][query] += values[column][key] *
// weights[key][query], 32 keys per step. Weights are used as the softmax left them; only values are
// transposed, once for all queries of an item. Holds the transposition of values and the operations
// on such an O, not the products. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/amx/tiles-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/prefill/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// out[column][key / 2] for 32 keys at a time: interleaved to pairs, then transposed.
inline void tile_pair_values(const RowsView& view, uint32_t* out, ptrdiff_t out_step,
                             int out_columns) noexcept {
  HWY_ALIGN uint32_t pairs[kStepPairs * kMostHeadDim];
  const auto* const from = static_cast<const uint16_t*>(view.data);
  for (int first = 0; first < view.rows; first += 2 * kStepPairs, out += kStepPairs) {
    for (int p = 0; p < kStepPairs; ++p) {
      uint32_t* const to = pairs + p * out_columns;
      const int row = first + 2 * p;
      const int columns = row < view.rows ? view.columns : 0;
      const uint16_t* const even = from + row * view.row_step;
      if (columns > 0)
        interleave_rows(even, row + 1 < view.rows ? even + view.row_step : nullptr,
                        view.column_step, columns, to);
      for (int c = columns; c < out_columns; ++c) to[c] = 0;
    }
    transpose_columns(reinterpret_cast<const float*>(pairs), out_columns, out_columns,
                      reinterpret_cast<char*>(out), out_step * 4);
  }
}

inline void tile_add_sums(const AddSumsArgs& args) noexcept {
  const ptrdiff_t size = ptrdiff_t{args.columns} * kPanel;
  if (args.factor == nullptr) {
    for (ptrdiff_t at = 0; at < size; at += kPanel)
      hn::StoreU(hn::LoadU(kF32, args.sums + at), kF32, args.out + at);
    return;
  }
  const V by = hn::LoadU(kF32, args.factor);
  for (ptrdiff_t at = 0; at < size; at += kPanel)
    hn::StoreU(
        hn::Add(hn::Mul(hn::LoadU(kF32, args.out + at), by), hn::LoadU(kF32, args.sums + at)), kF32,
        args.out + at);
}

// Does to each lane what `fold` does to a row.
inline void tile_fold(const FoldArgs<float>& args) noexcept {
  const V none = hn::Set(kF32, -__builtin_inff()), c = hn::Set(kF32, args.exponent_factor);
  const V m = hn::LoadU(kF32, args.m), split_m = hn::LoadU(kF32, args.split_m);
  const V to = hn::IfThenElse(hn::Gt(split_m, m), split_m, m);
  const V a = move_factor<float>(c, m, to), b = move_factor<float>(c, split_m, to);
  const M keeps = hn::Eq(split_m, none), takes = hn::Eq(m, none);
  const auto folded = [&](const float* total, const float* split) HWY_ATTR {
    const V x = hn::LoadU(kF32, total), y = hn::LoadU(kF32, split);
    return hn::IfThenElse(keeps, x, hn::IfThenElse(takes, y, fma(x, a, hn::Mul(y, b))));
  };
  hn::StoreU(folded(args.l, args.split_l), kF32, args.l);
  hn::StoreU(hn::IfThenElse(keeps, m, to), kF32, args.m);
  for (ptrdiff_t at = 0; at < ptrdiff_t{args.columns} * kPanel; at += kPanel)
    hn::StoreU(folded(args.o + at, args.split_o + at), kF32, args.o + at);
}

inline void tile_rows(const float* from, int columns, float* out) noexcept {
  for (int c = 0; c < columns; c += kPanel)
    transpose_block(from + ptrdiff_t{c} * kPanel, kPanel, reinterpret_cast<char*>(out + c),
                    ptrdiff_t{columns} * 4);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
