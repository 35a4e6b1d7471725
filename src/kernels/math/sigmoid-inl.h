// sigmoid(x) = 1 / (1 + e^-x), 1.97 ulp in the worst case, and silu(x) = x sigmoid(x), 3.19 ulp;
// both hold down to the last subnormal result. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// 2^y, y <= 0 a function of |x|, in the parts that exp2_fraction and times_pow2 take. X is V or
// VectorGroup.
template <class X>
struct Decay {
  X a;              // |x|, limited to where x 2^y vanishes
  X shifted, n, f;  // y + kShift; y = n + f
};

// y = -|x| log2(e)
template <class X>
HWY_INLINE Decay<X> exp_decay(const X& x) {
  const V shift = hn::Set(kF32, kShift), log2e = hn::Set(kF32, -kLog2E);
  const X a = min_step(hn::Set(kF32, 120.f), abs(x));
  const X shifted = fma(a, log2e, shift), n = sub(shifted, shift);
  return {a, shifted, n, fma(a, hn::Set(kF32, -kLog2ELow), fms(a, log2e, n))};
}

// With e = e^-|x|: 1 / (1 + e) or e / (1 + e). What the sum lost to rounding is taken off at the
// end; that the correction is not divided by 1 + e leaves at most half of it, where it is small.
template <class X>
HWY_INLINE X sigmoid_in_step(const X& x) {
  const Decay<X> d = exp_decay(x);
  const V one = hn::Set(kF32, 1.f);
  const X e = times_pow2(exp2_fraction(d.f), d.shifted, d.n);
  const X sum = add(one, e), lost = sub(e, sub(sum, one));
  const X y = div(if_negative(x, e, one), sum);
  return fnma(y, lost, y);
}
HWY_INLINE V sigmoid(V x) { return sigmoid_in_step(x); }
template <int kCount>
HWY_INLINE VectorGroup<kCount> sigmoid(const VectorGroup<kCount>& x) {
  return sigmoid_in_step(x);
}

// x / (1 + 2^y) for x >= 0, x 2^y / (1 + 2^y) for x < 0; the power comes last, so that the result
// is rounded once where it is subnormal. At -inf NaN, as in torch.
HWY_INLINE V times_logistic(V x, const Decay<V>& d) {
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
