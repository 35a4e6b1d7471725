// tanh over the whole range: 1.94 ulp in the worst case; -0 stays -0. 19 operations and a true
// division, 11.5 cycles for 16 floats on Zen 4 (9 for a rational function of degree 9/8, which has
// 5 ulp): hn::ApproximateReciprocal has other bits on every ISA. Kernels layer.
#pragma once
#include "kernels/math/minmax-inl.h"
#include "kernels/math/pow2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// With a = |x| and e^-2a = s (1 - 2q), s = 2^n: tanh(a) = ((1 - s)/2 + s q) / ((1 + s)/2 - s q).
// For a < 0.17 n is 0, so that q = a + ... keeps every bit of a small a. From a = 9.01 on the
// result is 1.
HWY_INLINE V tanh(V x) {
  const V half = hn::Set(kF32, 0.5f), shift = hn::Set(kF32, kShift);
  const V a = min_step(hn::Set(kF32, 20.f), hn::Abs(x));
  const V shifted = fma(a, hn::Set(kF32, -0x1.715476p+1f), shift);  // -2 log2(e)
  const V n = hn::Sub(shifted, shift), s = pow2(shifted);
  const V r = fma(n, hn::Set(kF32, 0x1.62e43p-2f), a);  // log(2) / 2, good to 30 bits
  // q = (1 - e^-2r)/2 = r + r^2 p: degree 6, 8.4e-9 of tanh(a).
  V p = hn::Set(kF32, -0x1.673374p-5f);
  p = fma(p, r, hn::Set(kF32, 0x1.123c36p-3f));
  p = fma(p, r, hn::Set(kF32, -0x1.555dc4p-2f));
  p = fma(p, r, hn::Set(kF32, 0x1.55548ep-1f));
  p = fma(p, r, hn::Set(kF32, -0x1.fffff4p-1f));
  const V q = fma(hn::Mul(r, r), p, r);
  const V top = fma(s, q, fnma(s, half, half)), bottom = fnma(s, q, fma(s, half, half));
  return hn::CopySignToAbs(hn::Div(top, bottom), x);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
