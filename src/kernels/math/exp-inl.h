// exp2 and exp over the whole range, with subnormal results, 0 and inf where libm has them: 0.88
// ulp and 1.02 ulp in the worst case. Not the softmax's exponential (exp2_softmax-inl.h). Kernels
// layer.
#pragma once
#include <cmath>

#include "kernels/math/vector_group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// log2(e) = kLog2E + kLog2ELow
constexpr float kLog2E = 0x1.715476p+0f, kLog2ELow = 0x1.4ae0cp-26f;

// (2^f - 1) / f for |f| <= 0.5; degree 5, 3.0e-9 of 2^f. X is V or VectorGroup, here and below.
template <class X>
HWY_INLINE X exp2_slope(const X& f) {
  X p = fma(hn::Set(kF32, 0x1.4177e4p-13f), f, hn::Set(kF32, 0x1.5f095p-10f));
  p = fma(p, f, hn::Set(kF32, 0x1.3b2dd4p-7f));
  p = fma(p, f, hn::Set(kF32, 0x1.c6af7ap-5f));
  p = fma(p, f, hn::Set(kF32, 0x1.ebfbdcp-3f));
  return fma(p, f, hn::Set(kF32, 0x1.62e43p-1f));
}

// 2^f for |f| <= 0.5, exactly 1 at 0.
template <class X>
HWY_INLINE X exp2_fraction(const X& f) {
  return fma(exp2_slope(f), f, hn::Set(kF32, 1.f));
}

HWY_INLINE V exp2(V x) {
  x = min_step(hn::Set(kF32, 128.f), max_step(hn::Set(kF32, -151.f), x));
  const V shift = hn::Set(kF32, kShift), shifted = hn::Add(x, shift), n = hn::Sub(shifted, shift);
  return times_pow2_wide(exp2_fraction(hn::Sub(x, n)), shifted, n);
}

// x * log2(e) = n + f. The first product minus n is nearly exact, the low part makes up the rest.
HWY_INLINE V exp(V x) {
  x = min_step(hn::Set(kF32, 89.f), max_step(hn::Set(kF32, -104.f), x));
  const V shift = hn::Set(kF32, kShift), log2e = hn::Set(kF32, kLog2E);
  const V shifted = fma(x, log2e, shift), n = hn::Sub(shifted, shift);
  const V f = fma(x, hn::Set(kF32, kLog2ELow), fms(x, log2e, n));
  return times_pow2_wide(exp2_fraction(f), shifted, n);
}

// f64.
HWY_INLINE double exp(double a) { return std::exp(a); }
HWY_INLINE double exp2(double a) { return std::exp2(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
