// erf over the whole range: 1.55 ulp in the worst case; -0 stays -0. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/minmax-inl.h"
#include "kernels/math/pow2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// erf(a) / a - 1 in a^2 for a <= 0.84375: degree 5, 6.2e-9 of erf(a).
HWY_INLINE V erf_small(V a) {
  const V z = hn::Mul(a, a);
  V p = hn::Set(kF32, -0x1.4e3b5p-11f);
  p = fma(p, z, hn::Set(kF32, 0x1.4bbc48p-8f));
  p = fma(p, z, hn::Set(kF32, -0x1.b73f58p-6f));
  p = fma(p, z, hn::Set(kF32, 0x1.ce25e8p-4f));
  p = fma(p, z, hn::Set(kF32, -0x1.812728p-2f));
  p = fma(p, z, hn::Set(kF32, 0x1.06eba8p-3f));
  return fma(p, a, a);
}

// 1 - 2^-t(a), t = -log2(erfc(a)), for 0.84375 < a <= 4: degree 6, 2.1e-9 of erf(a).
HWY_INLINE V erf_large(V a) {
  V t = hn::Set(kF32, 0x1.351904p-12f);
  t = fma(t, a, hn::Set(kF32, -0x1.275e42p-8f));
  t = fma(t, a, hn::Set(kF32, 0x1.0a6bbcp-5f));
  t = fma(t, a, hn::Set(kF32, -0x1.34f992p-3f));
  t = fma(t, a, hn::Set(kF32, -0x1.d6221cp-1f));
  t = fma(t, a, hn::Set(kF32, -0x1.a0a32cp+0f));
  t = fma(t, a, hn::Set(kF32, -0x1.280f38p-13f));
  const V shift = hn::Set(kF32, kShift), shifted = hn::Add(t, shift);
  const V f = hn::Sub(t, hn::Sub(shifted, shift));
  // 2^f: degree 5, 9.4e-8, of which at most a third is left in 1 - 2^t.
  V p = hn::Set(kF32, 0x1.5bd7c4p-10f);
  p = fma(p, f, hn::Set(kF32, 0x1.3ce8d4p-7f));
  p = fma(p, f, hn::Set(kF32, 0x1.c6b6dep-5f));
  p = fma(p, f, hn::Set(kF32, 0x1.ebf9c2p-3f));
  p = fma(p, f, hn::Set(kF32, 0x1.62e42ap-1f));
  p = fma(p, f, hn::Set(kF32, 1.f));
  return fnma(p, pow2(shifted), hn::Set(kF32, 1.f));
}

HWY_INLINE V erf(V x) {
  const V a = min_step(hn::Set(kF32, 4.f), hn::Abs(x));
  const M small = hn::Lt(a, hn::Set(kF32, 0.84375f));
  return hn::CopySignToAbs(hn::IfThenElse(small, erf_small(a), erf_large(a)), x);
}

// f64.
HWY_INLINE double erf(double a) { return std::erf(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
