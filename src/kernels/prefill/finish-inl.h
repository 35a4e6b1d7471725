// The outputs of a query tile: O * factor / l in the output's type and steps. Tells which rows are
// not finite. Kernels layer.
#pragma once
#include "kernels/float16-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Some columns, fewer than a vector or not side by side.
template <class T, class E>
HWY_INLINE void scatter_columns(VecOf<T> x, E* out, ptrdiff_t step, int count) {
  constexpr hn::ScalableTag<T> d;
  E lanes[kLanesOf<T>];
  store_narrowed(d, x, lanes);
  for (int c = 0; c < count; ++c) out[c * step] = lanes[c];
}

// One row; false if an element is not finite.
template <class T, class E>
HWY_INLINE bool finish_row(const T* o, T inverse, const FinishArgs<T>& args, E* out) {
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> factor = hn::Set(d, inverse), zero = hn::Zero(d);
  const ptrdiff_t step = args.column_step;
  const int columns = args.columns;
  VecOf<T> check = zero;  // x - x is 0, or NaN
  int c = 0;
  for (; c + kN <= columns; c += kN) {
    const VecOf<T> x = fma(hn::LoadU(d, o + c), factor, zero);
    check = hn::Add(check, hn::Sub(x, x));
    if (step == 1)
      store_narrowed(d, x, out + c);
    else
      scatter_columns<T>(x, out + c * step, step, kN);
  }
  if (c < columns) {
    T rest[kLanesOf<T>] = {};
    for (int i = 0; c + i < columns; ++i) rest[i] = o[c + i];
    const VecOf<T> x = fma(hn::LoadU(d, rest), factor, zero);
    check = hn::Add(check, hn::Sub(x, x));
    scatter_columns<T>(x, out + c * step, step, columns - c);
  }
  return hn::AllTrue(d, hn::Eq(check, zero));
}

template <class T, class E>
HWY_INLINE uint64_t finish_rows(const FinishArgs<T>& args) {
  uint64_t not_finite = 0;
  E* out = static_cast<E*>(args.out);
  for (int q = 0; q < args.queries; ++q, out += args.row_step) {
    const T l = args.l[q];
    if (l == 0) {  // nothing was visible; O may hold anything
      for (int c = 0; c < args.columns; ++c) out[c * args.column_step] = E{};
    } else if (const T factor = args.factor == nullptr ? T{1} : args.factor[q];
               !finish_row(args.o + q * args.step, factor / l, args, out)) {
      not_finite |= uint64_t{1} << q;
    }
  }
  return not_finite;
}

template <class T>
uint64_t finish(const FinishArgs<T>& args) noexcept {
  switch (args.dtype) {
    case DType::f32:
      return finish_rows<T, float>(args);
    case DType::f64:
      return finish_rows<T, double>(args);
    case DType::bf16:
      return finish_rows<T, Bf16Bits>(args);
    case DType::f16:
      return finish_rows<T, F16Bits>(args);
    default:
      return 0;
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
