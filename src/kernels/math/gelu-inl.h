// gelu(x) = x Phi(x), Phi the normal distribution: 3.84 ulp in the worst case, also in the negative
// tail down to the last subnormal result (x = -14.3). Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// a e^(a^2/2) Phi(-a) = h g(2h - 1) with h = a / (a + 3.5), for a <= 14.5: degree 9, 2.4e-8. What h
// loses to rounding hardly moves the product where a is large.
HWY_INLINE V gelu_decay(V a) {
  const V h = hn::Div(a, hn::Add(a, hn::Set(kF32, 3.5f)));
  const V t = fms(h, hn::Set(kF32, 2.f), hn::Set(kF32, 1.f));
  V g = hn::Set(kF32, 0x1.8c1758p-14f);
  g = fma(g, t, hn::Set(kF32, 0x1.a9e982p-12f));
  g = fma(g, t, hn::Set(kF32, -0x1.f05564p-12f));
  g = fma(g, t, hn::Set(kF32, -0x1.9d9c58p-9f));
  g = fma(g, t, hn::Set(kF32, 0x1.a8e85cp-8f));
  g = fma(g, t, hn::Set(kF32, 0x1.1d1072p-6f));
  g = fma(g, t, hn::Set(kF32, -0x1.db58aep-4f));
  g = fma(g, t, hn::Set(kF32, 0x1.42ff04p-2f));
  g = fma(g, t, hn::Set(kF32, -0x1.219152p-1f));
  g = fma(g, t, hn::Set(kF32, 0x1.7d241ap-1f));
  return hn::Mul(h, g);
}

// With a = |x|: max(x, 0) - a Phi(-a). At -inf NaN, as in torch.
HWY_INLINE V gelu(V x) {
  const V a = min_step(hn::Set(kF32, 14.5f), hn::Abs(x));
  // -a^2/2 log2(e), the square exact as high + low.
  const V c = hn::Set(kF32, -0.5f * kLog2E), c_low = hn::Set(kF32, -0.5f * kLog2ELow);
  const V high = hn::Mul(a, a), low = fms(a, a, high);
  const V shift = hn::Set(kF32, kShift), shifted = fma(high, c, shift), n = hn::Sub(shifted, shift);
  const V f = hn::Add(fms(high, c, n), fma(low, c, hn::Mul(high, c_low)));
  const V g = gelu_decay(a), w = times_pow2(fma(hn::Mul(exp2_slope(f), f), g, g), shifted, n);
  const V y = hn::Sub(hn::IfThenElseZero(hn::Gt(x, hn::Zero(kF32)), x), w);
  const M lowest = hn::Eq(x, hn::Set(kF32, -__builtin_inff()));
  return hn::IfThenElse(lowest, hn::Set(kF32, __builtin_nanf("")), hn::CopySign(y, x));
}

// f64.
HWY_INLINE double gelu(double a) { return a * 0.5 * std::erfc(a * -0.70710678118654752440); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
