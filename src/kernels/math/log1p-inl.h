// log1p = log(1 + x) without losing the bits of a small x: 1.48 ulp in the worst case; -0 stays -0,
// -inf at -1, NaN below. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/log-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// e comes from 1 + x rounded; f = 2^-e (1 + x) - 1 from x itself. Where x >= 2^30 the 1 is lost
// anyway.
HWY_INLINE V log1p(V x) {
  const V one = hn::Set(kF32, 1.f), u = hn::Add(one, x);
  const LogParts parts = log_parts(u);
  const VI power = hn::Sub(hn::Set(kI32, 127 << 23), hn::ShiftLeft<23>(parts.e));
  const V s = hn::BitCast(kF32, power);
  const M large = hn::Gt(x, hn::Set(kF32, 0x1p30f));
  const V f = hn::IfThenElse(large, parts.f, fma(x, s, hn::Sub(s, one)));
  const V y = log_or_special(u, log_from_parts(hn::ConvertTo(kF32, parts.e), f));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(kF32, 0x1p-25f)), x, y);
}

// f64.
HWY_INLINE double log1p(double a) { return std::log1p(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
