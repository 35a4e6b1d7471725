// Folding the state of a split into that of the splits before it, row by row. A split that saw
// nothing is skipped and the first one that saw something is taken as it is: no arithmetic touches
// the O of the other side, which may hold anything. Kernels layer.
#pragma once
#include "kernels/prefill/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// The factors of both sides of a row.
template <class T>
struct FoldFactors {
  T a, b;
};

template <class T>
HWY_INLINE FoldFactors<T> fold_factors(T factor, T m, T split_m, T to) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> target = hn::Set(d, to), c = hn::Set(d, factor);
  return {hn::GetLane(move_factor<T>(c, hn::Set(d, m), target)),
          hn::GetLane(move_factor<T>(c, hn::Set(d, split_m), target))};
}

template <class T>
HWY_INLINE void fold_row(T* HWY_RESTRICT o, const T* HWY_RESTRICT split_o, int columns,
                         FoldFactors<T> factors) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> a = hn::Set(d, factors.a), b = hn::Set(d, factors.b);
  for (int c = 0; c < columns; c += static_cast<int>(kLanesOf<T>))
    hn::StoreU(fma(hn::LoadU(d, o + c), a, hn::Mul(hn::LoadU(d, split_o + c), b)), d, o + c);
}

template <class T>
void fold(const FoldArgs<T>& args) noexcept {
  constexpr T kNone = -static_cast<T>(__builtin_inff());
  constexpr hn::ScalableTag<T> d;
  for (int q = 0; q < args.queries; ++q) {
    const T m = args.m[q], split_m = args.split_m[q];
    if (split_m == kNone) continue;
    T* o = args.o + q * args.step;
    const T* split_o = args.split_o + q * args.step;
    if (m == kNone) {
      args.m[q] = split_m;
      args.l[q] = args.split_l[q];
      for (int c = 0; c < args.columns; c += static_cast<int>(kLanesOf<T>))
        hn::StoreU(hn::LoadU(d, split_o + c), d, o + c);
      continue;
    }
    const T to = split_m > m ? split_m : m;
    const FoldFactors<T> factors = fold_factors(args.exponent_factor, m, split_m, to);
    const VecOf<T> other = hn::Set(d, args.split_l[q] * factors.b);
    args.m[q] = to;
    args.l[q] = hn::GetLane(fma(hn::Set(d, args.l[q]), hn::Set(d, factors.a), other));
    fold_row(o, split_o, args.columns, factors);
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
