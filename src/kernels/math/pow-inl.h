// pow(x, y) over the whole range, with the special cases of C99: 0.51 ulp in the worst case found.
// Computed in double lanes as 2^(y log2|x|), with multiplications and additions alone because
// SCALAR has no double fma, and rounded once to float. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr hn::RebindToUnsigned<F64> kU64;

// c[0] + c[1] x + ... in double.
template <size_t N>
HWY_INLINE VD polynomial_double(const double (&c)[N], VD x) {
  VD p = hn::Set(kF64, c[N - 1]);
  HWY_UNROLL(8)
  for (size_t i = N - 1; i > 0; --i) p = hn::Add(hn::Mul(p, x), hn::Set(kF64, c[i - 1]));
  return p;
}

// log2(x) for 0 <= x <= inf. x = 2^e m with m in [sqrt(1/2), sqrt(2)), s = (m - 1)/(m + 1):
// log2(m)/s in s^2, degree 5, 2.7e-14.
HWY_INLINE VD log2_double(VD x) {
  static constexpr double kC[] = {0x1.71547652b8251p+1, 0x1.ec709dc53bc06p-1, 0x1.2776c293f4e45p-1,
                                  0x1.a61a2e43d2b29p-2, 0x1.47956a71bc9adp-2, 0x1.21afd5db85c51p-2};
  const auto root = hn::Set(kU64, 0x3fe6a09e667f3bcdULL);  // the bits of sqrt(1/2)
  const auto bits = hn::Add(hn::Sub(hn::BitCast(kU64, x), root), hn::Set(kU64, 1023ULL << 52));
  // The biased exponent becomes a number in the low bits of 2^52.
  const auto exponent = hn::Or(hn::ShiftRight<52>(bits), hn::Set(kU64, 0x4330000000000000ULL));
  const VD e = hn::Sub(hn::BitCast(kF64, exponent), hn::Set(kF64, 0x1p52 + 1023));
  const auto mantissa = hn::Add(hn::And(bits, hn::Set(kU64, (1ULL << 52) - 1)), root);
  const VD m = hn::BitCast(kF64, mantissa), one = hn::Set(kF64, 1.0);
  const VD s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VD y = hn::Add(hn::Mul(polynomial_double(kC, hn::Mul(s, s)), s), e);
  const VD inf = hn::Set(kF64, __builtin_inf()), zero = hn::Zero(kF64);
  return hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), hn::IfThenElse(hn::Eq(x, inf), inf, y));
}

// 2^x for |x| <= 1000: degree 7, 4.7e-11.
HWY_INLINE VD exp2_double(VD x) {
  static constexpr double kC[] = {1.0,
                                  0x1.62e42ff0e19e8p-1,
                                  0x1.ebfbe07784925p-3,
                                  0x1.c6b08ac0564acp-5,
                                  0x1.3b29f39ea2653p-7,
                                  0x1.5d8a861507779p-10,
                                  0x1.445c836cdd9b1p-13,
                                  0x1.fde5e4d9eeaaep-17};
  const VD shift = hn::Set(kF64, 0x1.8p52 + 1023), shifted = hn::Add(x, shift);
  const VD power = hn::BitCast(kF64, hn::ShiftLeft<52>(hn::BitCast(kU64, shifted)));
  return hn::Mul(polynomial_double(kC, hn::Sub(x, hn::Sub(shifted, shift))), power);
}

// a^y for a >= 0. 1^inf is 1; where a or y is NaN, or inf^0, the result is not defined.
HWY_INLINE VD pow_double(VD a, VD y) {
  const VD log = log2_double(a), limit = hn::Set(kF64, 300.0);
  const VD x = hn::IfThenZeroElse(hn::Eq(log, hn::Zero(kF64)), hn::Mul(y, log));
  return exp2_double(hn::Min(hn::Max(x, hn::Neg(limit)), limit));
}

#if HWY_TARGET == HWY_SCALAR  // its DemoteTo turns inf into the largest float, so plain C++ it is
HWY_INLINE V pow_magnitude(V a, V y) {
  return V(float(pow_double(VD(double(a.raw)), VD(double(y.raw))).raw));
}
#else
HWY_INLINE V pow_magnitude(V a, V y) {
  const hn::Half<F32> half;
  const VD low = pow_double(hn::PromoteTo(kF64, hn::LowerHalf(half, a)),
                            hn::PromoteTo(kF64, hn::LowerHalf(half, y)));
  const VD high = pow_double(hn::PromoteTo(kF64, hn::UpperHalf(half, a)),
                             hn::PromoteTo(kF64, hn::UpperHalf(half, y)));
  return hn::Combine(kF32, hn::DemoteTo(half, high), hn::DemoteTo(half, low));
}
#endif

HWY_INLINE V pow(V x, V y) {
  const V zero = hn::Zero(kF32), one = hn::Set(kF32, 1.f), nan = hn::Set(kF32, __builtin_nanf(""));
  const V half_y = hn::Mul(y, hn::Set(kF32, 0.5f));
  const M integral = hn::Eq(trunc(y), y), even = hn::Eq(trunc(half_y), half_y);  // inf is even
  V r = pow_magnitude(hn::Abs(x), y);
  const V x_sign = hn::And(x, hn::Set(kF32, -0.f));
  r = hn::Or(r, hn::IfThenElseZero(hn::AndNot(even, integral), x_sign));
  const M finite_negative = hn::And(hn::Lt(x, zero), hn::Gt(x, hn::Set(kF32, -__builtin_inff())));
  const M ordered = hn::And(hn::Eq(x, x), hn::Eq(y, y));  // hn::Ne(x, x) is false on x86
  r = hn::IfThenElse(hn::AndNot(hn::AndNot(integral, finite_negative), ordered), r, nan);
  return hn::IfThenElse(hn::Or(hn::Eq(y, zero), hn::Eq(x, one)), one, r);
}

// f64.
HWY_INLINE double pow(double a, double b) { return std::pow(a, b); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
