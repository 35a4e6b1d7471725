// gelu_tanh(x) = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + e^-2u): 3.18 ulp
// in the worst case, also in the negative tail down to the last subnormal result (x = -10.7).
// Kernels layer.
#pragma once
#include "kernels/math/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// -2|u| log2(e) = -a (k1 + k3 a^2), to about 40 bits: it reaches 150 and decides the result's last
// bits.
HWY_INLINE Decay<V> gelu_tanh_decay(V x) {
  const V a = min_step(hn::Set(kF32, 11.f), hn::Abs(x)), z = hn::Mul(a, a), z_low = fms(a, a, z);
  // k1 is a multiple of 2^-18, so that high - k1 is exact.
  const V k1 = hn::Set(kF32, -0x1.26aecp+1f), k1_low = hn::Set(kF32, -0x1.0de73ap-22f);
  const V k3 = hn::Set(kF32, -0x1.a5a7dp-4f), k3_low = hn::Set(kF32, 0x1.151aaep-29f);
  const V high = fma(k3, z, k1);
  const V low = fma(k3_low, z, fma(k3, z_low, hn::Add(fms(k3, z, hn::Sub(high, k1)), k1_low)));
  const V shift = hn::Set(kF32, kShift), shifted = fma(a, high, shift), n = hn::Sub(shifted, shift);
  return {a, shifted, n, fma(a, low, fms(a, high, n))};
}

HWY_INLINE V gelu_tanh(V x) { return times_logistic(x, gelu_tanh_decay(x)); }

// f64.
// a/2 (1 + tanh(u)) as a sigmoid(2u): no digits are lost where 1 + tanh cancels.
HWY_INLINE double gelu_tanh(double a) {
  return a * sigmoid(2 * 0.79788456080286535588 * (a + 0.044715 * a * a * a));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
