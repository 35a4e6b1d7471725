// sin, cos and atan of every float: at most 1.49, 1.71 and 1.1 ulp off. sin and cos of inf are
// NaN. sin and cos use Cody and Waite's reduction up to |x| = 2^17; larger lanes are replaced, one
// by one, by libm's double functions, whose value does not depend on the ISA. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr float kLargestReduced = 0x1p17f;
constexpr float kInversePi = 0x1.45f306p-2f;

// sin(a - n pi) for |a - n pi| <= pi/2 (1 + 0.006), n an integer or halfway between two.
HWY_INLINE V sin_reduced(V a, V n) {
  // The first step is exact; the second rounds; pi is good to 2^-100 after the third.
  V r = fnma(n, hn::Set(kF32, 0x1.921fb6p+1f), a);
  r = fma(n, hn::Set(kF32, 0x1.777a5cp-24f), r);
  r = fma(n, hn::Set(kF32, 0x1.ee59dap-49f), r);
  // (sin(r) - r) / r^3 = -5/32 + p(r^2): degree 4, 4.6e-10 of sin(r). -5/32 apart, because p then
  // is so small that its rounding errors vanish.
  const V z = hn::Mul(r, r);
  V p = hn::Set(kF32, -0x1.b624a6p-26f);
  p = fma(p, z, hn::Set(kF32, 0x1.72cddcp-19f));
  p = fma(p, z, hn::Set(kF32, -0x1.a023ccp-13f));
  p = fma(p, z, hn::Set(kF32, 0x1.111136p-7f));
  p = fma(p, z, hn::Set(kF32, -0x1.555556p-3f + 0.15625f));
  const V u = fma(z, hn::Set(kF32, -0.15625f), hn::Mul(z, p));
  return fma(u, r, r);
}

// The lowest bit of n as a sign, from n + 2^23 * 1.5.
HWY_INLINE V parity_sign(V shifted) {
  return hn::BitCast(kF32, hn::ShiftLeft<31>(hn::BitCast(kI32, shifted)));
}

// y[i] = function(x[i]) in double where |x[i]| is large or inf.
HWY_NOINLINE inline void replace_large_lanes(const float* x, float* y,
                                             double (*function)(double)) noexcept {
  for (size_t i = 0; i < kLanes; ++i)
    if (std::fabs(x[i]) > kLargestReduced) y[i] = float(function(double(x[i])));
}

HWY_INLINE V with_large_lanes(V x, V y, double (*function)(double)) {
  if (HWY_UNLIKELY(!hn::AllFalse(kF32, hn::Gt(hn::Abs(x), hn::Set(kF32, kLargestReduced))))) {
    HWY_ALIGN float in[kLanes], out[kLanes];
    hn::Store(x, kF32, in), hn::Store(y, kF32, out);
    replace_large_lanes(in, out, function);
    return hn::Load(kF32, out);
  }
  return y;
}

// Computed from |x|; the sign, that of -0 too, comes back at the end.
HWY_INLINE V sin(V x) {
  const V a = hn::Abs(x), shift = hn::Set(kF32, 0x1.8p23f);
  const V shifted = fma(a, hn::Set(kF32, kInversePi), shift);
  const V y = sin_reduced(a, hn::Sub(shifted, shift));
  const V sign = hn::Xor(parity_sign(shifted), hn::And(x, hn::Set(kF32, -0.f)));
  return with_large_lanes(x, hn::Xor(y, sign), &::sin);
}

// cos(x) = (-1)^j sin(x - (j - 1/2) pi)
HWY_INLINE V cos(V x) {
  const V a = hn::Abs(x), shift = hn::Set(kF32, 0x1.8p23f), half = hn::Set(kF32, 0.5f);
  const V shifted = hn::Add(fma(a, hn::Set(kF32, kInversePi), half), shift);
  const V y = sin_reduced(a, hn::Sub(hn::Sub(shifted, shift), half));
  return with_large_lanes(x, hn::Xor(y, parity_sign(shifted)), &::cos);
}

// atan(a) for a >= 0: of t = a up to 11/16, of t = (a - 1) / (a + 1) up to 3/2 (and pi/4), of
// t = -1 / a beyond (and pi/2). One division serves all three.
HWY_INLINE V atan(V x) {
  const V a = hn::Abs(x), one = hn::Set(kF32, 1.f), zero = hn::Zero(kF32);
  const M middle = hn::Gt(a, hn::Set(kF32, 0.6875f)), large = hn::Gt(a, hn::Set(kF32, 1.5f));
  const V top =
      hn::IfThenElse(large, hn::Set(kF32, -1.f), hn::IfThenElse(middle, hn::Sub(a, one), a));
  const V bottom = hn::IfThenElse(large, a, hn::IfThenElse(middle, hn::Add(a, one), one));
  const V t = hn::Div(top, bottom), z = hn::Mul(t, t);
  // (atan(t) / t - 1) / t^2 in t^2 for |t| <= 11/16: degree 6, 1.1e-9 of atan(t).
  V p = hn::Set(kF32, -0x1.0a1c3ep-6f);
  p = fma(p, z, hn::Set(kF32, 0x1.944e3cp-5f));
  p = fma(p, z, hn::Set(kF32, -0x1.4efec6p-4f));
  p = fma(p, z, hn::Set(kF32, 0x1.bfdb38p-4f));
  p = fma(p, z, hn::Set(kF32, -0x1.242ee4p-3f));
  p = fma(p, z, hn::Set(kF32, 0x1.99947ep-3f));
  p = fma(p, z, hn::Set(kF32, -0x1.55554ap-2f));
  // pi/4 and pi/2 in two parts: the second is lost in t unless it is added to the smaller term.
  const V high = hn::IfThenElse(large, hn::Set(kF32, 0x1.921fb6p+0f),
                                hn::IfThenElse(middle, hn::Set(kF32, 0x1.921fb6p-1f), zero));
  const V low = hn::IfThenElse(large, hn::Set(kF32, -0x1.777a5cp-25f),
                               hn::IfThenElse(middle, hn::Set(kF32, -0x1.777a5cp-26f), zero));
  const V y = hn::Add(hn::Add(fma(hn::Mul(t, z), p, low), t), high);
  return hn::CopySignToAbs(y, x);
}

// f64.
HWY_INLINE double sin(double a) { return std::sin(a); }
HWY_INLINE double cos(double a) { return std::cos(a); }
HWY_INLINE double atan(double a) { return std::atan(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
