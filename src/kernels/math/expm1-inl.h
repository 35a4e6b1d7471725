// expm1 = e^x - 1 without cancellation, over the whole range: 1.25 ulp in the worst case; -0 stays
// -0. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// 2^n (e^r - 1) + (2^n - 1) with r = x - n ln 2, all halved, so that 2^n may reach 2^128.
HWY_INLINE V expm1(V x) {
  const V half = hn::Set(kF32, 0.5f);
  const V y = min_step(hn::Set(kF32, 89.f), max_step(hn::Set(kF32, -30.f), x));
  const V shift = hn::Set(kF32, kShift - 1);  // -1: 2^(n - 1)
  const V shifted = fma(y, hn::Set(kF32, kLog2E), shift), n = hn::Sub(shifted, shift);
  const V s = pow2(shifted);
  V r = fnma(n, hn::Set(kF32, 0x1.62e43p-1f), y);
  r = fma(n, hn::Set(kF32, 0x1.05c61p-29f), r);
  // (e^r - 1 - r) / r^2: degree 4, 1.4e-8 of e^r - 1.
  V p = hn::Set(kF32, 0x1.6b9c68p-10f);
  p = fma(p, r, hn::Set(kF32, 0x1.12254ap-7f));
  p = fma(p, r, hn::Set(kF32, 0x1.5556f2p-5f));
  p = fma(p, r, hn::Set(kF32, 0x1.5554b4p-3f));
  p = fma(p, r, hn::Set(kF32, 0x1.fffffep-2f));
  // s r + (s - 1/2) as high + low, because the sum may be smaller than its terms.
  const V offset = hn::Sub(s, half), high = fma(s, r, offset);
  const V low = fma(s, r, hn::Sub(offset, high));
  const V e = hn::Add(high, fma(s, hn::Mul(hn::Mul(r, r), p), low));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(kF32, 0x1p-25f)), x, hn::Add(e, e));
}

// f64.
HWY_INLINE double expm1(double a) { return std::expm1(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
