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
  for (; step == 1 && c + kN <= columns; c += kN) {
    const VecOf<T> x = fma(hn::LoadU(d, o + c), factor, zero);
    check = hn::Add(check, hn::Sub(x, x));
    store_narrowed(d, x, out + c);
  }
  for (; c + kN <= columns; c += kN) {
    const VecOf<T> x = fma(hn::LoadU(d, o + c), factor, zero);
    check = hn::Add(check, hn::Sub(x, x));
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

// inverse[q] = factor / l of all queries: a vector's in the time of one. Nothing is done with that
// of l = 0.
template <class T>
HWY_INLINE void divide_rows(const FinishArgs<T>& args, T* HWY_RESTRICT inverse) {
  constexpr hn::ScalableTag<T> d;
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  int q = 0;
  for (; q + kN <= args.queries; q += kN) {
    const VecOf<T> factor =
        args.factor == nullptr ? hn::Set(d, T{1}) : hn::LoadU(d, args.factor + q);
    hn::StoreU(hn::Div(factor, hn::LoadU(d, args.l + q)), d, inverse + q);
  }
  for (; q < args.queries; ++q)
    inverse[q] = (args.factor == nullptr ? T{1} : args.factor[q]) / args.l[q];
}

template <class T, class E>
HWY_INLINE uint64_t finish_rows(const FinishArgs<T>& args) {
  HWY_ALIGN T inverse[kQueryTile];
  divide_rows(args, inverse);
  uint64_t not_finite = 0;
  E* out = static_cast<E*>(args.out);
  for (int q = 0; q < args.queries; ++q, out += args.row_step) {
    if (HWY_UNLIKELY(args.l[q] == 0)) {  // nothing was visible; O may hold anything
      for (int c = 0; c < args.columns; ++c) out[c * args.column_step] = E{};
    } else if (HWY_UNLIKELY(!finish_row(args.o + q * args.step, inverse[q], args, out))) {
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
