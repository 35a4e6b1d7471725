// Powers of two of integral exponents: rounding to the exponent, 2^n, and p * 2^n rounded once down
// into the subnormals. What exp and its relatives are made of. Kernels layer.
#pragma once
#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// x + kShift rounds x to the nearest integer n, half to even, and leaves n + 127 in the low bits;
// subtracting kShift gives n as a float. Two additions, where hn::Round and hn::NearestInt are one
// instruction on one ISA and a dozen on another. For |x| < 2^21; NaN stays NaN.
constexpr float kShift = 0x1.8p23f + 127;

// 2^n for -126 <= n <= 127, from x + kShift.
HWY_INLINE V pow2(V shifted) {
  return hn::BitCast(kF32, hn::ShiftLeft<23>(hn::BitCast(kI32, shifted)));
}

// p * 2^n rounded once; n is given as x + kShift and as a float. times_pow2 is for -200 <= n <=
// 127, times_pow2_wide for n = 128 too; where n < -100, |p| must be 0 or in [2^-20, 2^100]. NaN
// stays NaN.
#if HWY_TARGET <= HWY_AVX3

HWY_INLINE V times_pow2(V p, V /*shifted*/, V n) { return V{_mm512_scalef_ps(p.raw, n.raw)}; }
HWY_INLINE V times_pow2_wide(V p, V shifted, V n) { return times_pow2(p, shifted, n); }

#else

// Multiplies by a power of two that leaves p normal, which is exact, then by the rest: 1, or the
// step into the subnormals or to infinity.
HWY_INLINE V times_pow2_in_steps(V p, VI wanted, VI first) {
  const VI second = hn::Sub(hn::Add(wanted, hn::Set(kI32, 127 << 23)), first);
  return hn::Mul(hn::Mul(p, hn::BitCast(kF32, first)), hn::BitCast(kF32, second));
}

HWY_INLINE V times_pow2(V p, V shifted, V /*n*/) {
  const VI wanted = hn::ShiftLeft<23>(hn::BitCast(kI32, shifted));
  return times_pow2_in_steps(p, wanted, hn::Max(wanted, hn::Set(kI32, 27 << 23)));
}

HWY_INLINE V times_pow2_wide(V p, V shifted, V /*n*/) {
  const VI wanted = hn::ShiftLeft<23>(hn::BitCast(kI32, shifted));
  const VI first = hn::Min(hn::Max(wanted, hn::Set(kI32, 27 << 23)), hn::Set(kI32, 254 << 23));
  return times_pow2_in_steps(p, wanted, first);
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
