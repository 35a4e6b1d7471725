// sigmoid(x) = 1 / (1 + e^-x), 1.97 ulp in the worst case, and silu(x) = x sigmoid(x), 3.19 ulp;
// both hold down to the last subnormal result. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// 2^y, y <= 0 a function of |x|, in the parts that exp2_fraction and times_pow2 take.
struct Decay {
  V a;              // |x|, limited to where x 2^y vanishes
  V shifted, n, f;  // y + kShift; y = n + f
};

// y = -|x| log2(e)
HWY_INLINE Decay exp_decay(V x) {
  const V shift = hn::Set(kF32, kShift), log2e = hn::Set(kF32, -kLog2E);
  const V a = min_step(hn::Set(kF32, 120.f), hn::Abs(x));
  const V shifted = fma(a, log2e, shift), n = hn::Sub(shifted, shift);
  return {a, shifted, n, fma(a, hn::Set(kF32, -kLog2ELow), fms(a, log2e, n))};
}

// With e = e^-|x|: 1 / (1 + e) or e / (1 + e). What the sum lost to rounding is taken off at the
// end; that the correction is not divided by 1 + e leaves at most half of it, where it is small.
HWY_INLINE V sigmoid(V x) {
  const Decay d = exp_decay(x);
  const V one = hn::Set(kF32, 1.f), e = times_pow2(exp2_fraction(d.f), d.shifted, d.n);
  const V sum = hn::Add(one, e), lost = hn::Sub(e, hn::Sub(sum, one));
  const V y = hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(kF32)), e, one), sum);
  return fnma(y, lost, y);
}

// x / (1 + 2^y) for x >= 0, x 2^y / (1 + 2^y) for x < 0; the power comes last, so that the result
// is rounded once where it is subnormal. At -inf NaN, as in torch.
HWY_INLINE V times_logistic(V x, Decay d) {
  const V p = exp2_fraction(d.f), e = times_pow2(p, d.shifted, d.n);
  const M negative = hn::Lt(x, hn::Zero(kF32));
  const V top = hn::IfThenElse(negative, hn::Neg(hn::Mul(d.a, p)), x);
  const V q = hn::Div(top, hn::Add(hn::Set(kF32, 1.f), e));
  const V y = hn::IfThenElse(negative, times_pow2(q, d.shifted, d.n), q);
  const M lowest = hn::Eq(x, hn::Set(kF32, -__builtin_inff()));
  return hn::IfThenElse(lowest, hn::Set(kF32, __builtin_nanf("")), y);
}

HWY_INLINE V silu(V x) { return times_logistic(x, exp_decay(x)); }

// f64.
HWY_INLINE double sigmoid(double a) { return 1 / (1 + std::exp(-a)); }
HWY_INLINE double silu(double a) { return a / (1 + std::exp(-a)); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
