// sqrt, rounded correctly, and rsqrt = 1 / sqrt: 0.5001 ulp in the worst case; +-inf at zeros, NaN
// below. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

HWY_INLINE V sqrt(V x) { return hn::Sqrt(x); }

// 1 / sqrt(x) alone has 1.5 ulp. One step of Newton's method, y + y (1 - x y^2) / 2 with x y exact
// as high + low, rounds once more. At 0 and inf the step gives NaN and 1 / sqrt(x) is exact.
HWY_INLINE V rsqrt(V x) {
  const V one = hn::Set(kF32, 1.f), y = hn::Div(one, hn::Sqrt(x));
  const V high = hn::Mul(x, y), low = fms(x, y, high);
  const V rest = fnma(low, y, fnma(high, y, one));
  const V refined = fma(hn::Mul(y, hn::Set(kF32, 0.5f)), rest, y);
  return hn::IfThenElse(hn::Eq(refined, refined), refined, y);
}

// f64.
HWY_INLINE double sqrt(double a) { return std::sqrt(a); }
HWY_INLINE double rsqrt(double a) { return 1 / std::sqrt(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
