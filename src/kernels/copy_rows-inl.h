// Copies rows of any float type and stride to contiguous rows of the compute type, padded with
// zeros. Values are widened, never changed. Kernels layer.
#pragma once
#include "kernels/float16-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// One row: `columns` elements `step` apart.
template <class T, class E>
HWY_INLINE void copy_row(const E* from, ptrdiff_t step, int columns, T* HWY_RESTRICT out) {
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  constexpr hn::ScalableTag<T> d;
  if (step == 1 && columns >= kN) {
    int c = 0;
    for (; c + kN <= columns; c += kN) hn::StoreU(load_widened(d, from + c), d, out + c);
    // The last vector overlaps elements that are already written.
    if (c < columns) hn::StoreU(load_widened(d, from + columns - kN), d, out + columns - kN);
    return;
  }
  for (int c = 0; c < columns; ++c) out[c] = widened<T>(from[c * step]);
}

template <class T, class E>
HWY_INLINE void copy_rows_of(const CopyRowsArgs<T>& args) {
  const RowsView& view = args.from;
  const E* from = static_cast<const E*>(view.data);
  T* out = args.out;
  for (int r = 0; r < view.rows; ++r, from += view.row_step, out += args.out_step) {
    copy_row(from, view.column_step, view.columns, out);
    for (int c = view.columns; c < args.out_columns; ++c) out[c] = 0;
  }
}

template <class T>
void copy_rows(const CopyRowsArgs<T>& args) noexcept {
  switch (args.from.dtype) {
    case DType::f32:
      return copy_rows_of<T, float>(args);
    case DType::f64:
      return copy_rows_of<T, double>(args);
    case DType::bf16:
      return copy_rows_of<T, Bf16Bits>(args);
    case DType::f16:
      return copy_rows_of<T, F16Bits>(args);
    default:
      return;
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
