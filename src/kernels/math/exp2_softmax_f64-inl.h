// The exponential of the softmax in f64, built as that of f32 (exp2_softmax-inl.h): 2^(x c) for x c
// <= 1023 with an error of 1.5e-16 of its value, exactly 1 where x is 0, exactly 0 where x c <
// -960.5 (so that no weight is subnormal), NaN where x is NaN. Its bits are part of the contract.
// Above 1023 the result is not defined. Kernels layer.
#pragma once
#include "kernels/math/exp2_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// 2^f for |f| <= 0.5; the polynomial alone is off by 2.0e-17.
HWY_INLINE VD exp2_softmax_fraction(VD f) {
  VD p = hn::Set(kF64, 0x1.e9d3fe3952179p-32);
  p = fma(p, f, hn::Set(kF64, 0x1.e6063f7217bc6p-28));
  p = fma(p, f, hn::Set(kF64, 0x1.b524fae627834p-24));
  p = fma(p, f, hn::Set(kF64, 0x1.62bfd47773353p-20));
  p = fma(p, f, hn::Set(kF64, 0x1.ffcbfc670dcd4p-17));
  p = fma(p, f, hn::Set(kF64, 0x1.430913096fd9fp-13));
  p = fma(p, f, hn::Set(kF64, 0x1.5d87fe78a5276p-10));
  p = fma(p, f, hn::Set(kF64, 0x1.3b2ab6fba1ddap-7));
  p = fma(p, f, hn::Set(kF64, 0x1.c6b08d704a0c2p-5));
  p = fma(p, f, hn::Set(kF64, 0x1.ebfbdff82c598p-3));
  p = fma(p, f, hn::Set(kF64, 0x1.62e42fefa39efp-1));
  return fma(p, f, hn::Set(kF64, 1.0));
}

HWY_INLINE VD exp2_softmax(VD x, VD c) {
  // As kShift: rounds to an integer n and leaves n + 1023 in the low bits.
  const VD shift = hn::Set(kF64, 0x1.8p52 + 1023), shifted = fma(x, c, shift);
  const VD n = hn::Sub(shifted, shift), lowest = hn::Set(kF64, -960.0);
  const VD p = exp2_softmax_fraction(fms(x, c, n));
#if HWY_TARGET <= HWY_AVX3
  const __mmask8 keep = _mm512_cmp_pd_mask(n.raw, lowest.raw, _CMP_NLT_UQ);
  return VD{_mm512_maskz_scalef_pd(keep, p.raw, n.raw)};
#else
  const hn::RebindToSigned<F64> bits;
  const VD pow2 = hn::BitCast(kF64, hn::ShiftLeft<52>(hn::BitCast(bits, shifted)));
  return hn::IfThenZeroElse(hn::Lt(n, lowest), hn::Mul(p, pow2));
#endif
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
