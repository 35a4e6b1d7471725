// softplus(x) = log(1 + e^x) = max(x, 0) + log1p(e^-|x|): 1.95 ulp in the worst case, also where
// the result is subnormal. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

HWY_INLINE V softplus(V x) {
  const Decay<V> d = exp_decay(x);
  const V e = times_pow2(exp2_fraction(d.f), d.shifted, d.n);
  // (log1p(e) - e) / e^2 for 0 <= e <= 1: degree 8, 5.3e-9 of log1p(e).
  V p = hn::Set(kF32, -0x1.af49cep-9f);
  p = fma(p, e, hn::Set(kF32, 0x1.4917cep-6f));
  p = fma(p, e, hn::Set(kF32, -0x1.d6b08cp-5f));
  p = fma(p, e, hn::Set(kF32, 0x1.b4ae08p-4f));
  p = fma(p, e, hn::Set(kF32, -0x1.3a435ep-3f));
  p = fma(p, e, hn::Set(kF32, 0x1.934b54p-3f));
  p = fma(p, e, hn::Set(kF32, -0x1.ff23e6p-3f));
  p = fma(p, e, hn::Set(kF32, 0x1.554ddp-2f));
  p = fma(p, e, hn::Set(kF32, -0x1.ffffd2p-2f));
  return hn::Add(relu(x), fma(hn::Mul(p, e), e, e));
}

// f64.
HWY_INLINE double softplus(double a) {
  return (0 > a ? 0 : a) + std::log1p(std::exp(-std::fabs(a)));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
