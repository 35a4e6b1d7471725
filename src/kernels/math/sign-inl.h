// The sign bit: abs, neg, copy_sign, sign. All exact, for NaN too. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

HWY_INLINE V abs(V x) { return hn::Abs(x); }
HWY_INLINE V neg(V x) { return hn::Neg(x); }
// size with the sign of x; size is not negative.
HWY_INLINE V copy_sign(V size, V x) { return hn::CopySignToAbs(size, x); }

// -1, +0 or 1; +0 for zeros of both signs; NaN stays NaN.
HWY_INLINE V sign(V x) {
  const M zero_or_nan = hn::Not(hn::Gt(hn::Abs(x), hn::Zero(kF32)));
  return hn::IfThenElse(zero_or_nan, hn::Add(x, hn::Zero(kF32)),
                        hn::CopySignToAbs(hn::Set(kF32, 1.f), x));
}

// f64.
HWY_INLINE double neg(double a) { return -a; }
HWY_INLINE double abs(double a) { return std::fabs(a); }
HWY_INLINE double sign(double a) { return a > 0 ? 1 : a < 0 ? -1 : a + 0.0; }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
