// log and log2 over the whole range: 0.94 ulp and 1.24 ulp in the worst case, subnormals too; -inf
// at zeros, NaN below. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), f exact; for normal x > 0.
struct LogParts {
  VI e;
  V f;
};

HWY_INLINE LogParts log_parts(V x) {
  const VI root = hn::Set(kI32, 0x3f3504f3);  // the bits of sqrt(1/2)
  const VI bits = hn::Sub(hn::BitCast(kI32, x), root);
  const VI m = hn::Add(hn::And(bits, hn::Set(kI32, 0x7fffff)), root);
  return {hn::ShiftRight<23>(bits), hn::Sub(hn::BitCast(kF32, m), hn::Set(kF32, 1.f))};
}

// The same for subnormals too, e as a float.
struct LogPartsWide {
  V e, f;
};

HWY_INLINE LogPartsWide log_parts_wide(V x) {
  const M subnormal = hn::Lt(x, hn::Set(kF32, 0x1p-126f));
  const LogParts parts =
      log_parts(hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(kF32, 0x1p23f)), x));
  const V raised = hn::IfThenElseZero(subnormal, hn::Set(kF32, 23.f));
  return {hn::Sub(hn::ConvertTo(kF32, parts.e), raised), parts.f};
}

// (log(1 + f) - f) / f^2: degree 8, 5.8e-9 of log(1 + f).
HWY_INLINE V log_polynomial(V f) {
  V p = hn::Set(kF32, -0x1.38c9p-4f);
  p = fma(p, f, hn::Set(kF32, 0x1.055e64p-3f));
  p = fma(p, f, hn::Set(kF32, -0x1.0d8234p-3f));
  p = fma(p, f, hn::Set(kF32, 0x1.22d936p-3f));
  p = fma(p, f, hn::Set(kF32, -0x1.54728cp-3f));
  p = fma(p, f, hn::Set(kF32, 0x1.99a01cp-3f));
  p = fma(p, f, hn::Set(kF32, -0x1.000226p-2f));
  p = fma(p, f, hn::Set(kF32, 0x1.555554p-2f));
  return fma(p, f, hn::Set(kF32, -0.5f));
}

// e ln 2 + log(1 + f)
HWY_INLINE V log_from_parts(V e, V f) {
  const V r = fma(hn::Mul(f, f), log_polynomial(f), fma(e, hn::Set(kF32, -0x1.05c61p-29f), f));
  return fma(e, hn::Set(kF32, 0x1.62e43p-1f), r);
}

// `y` for 0 < x < inf, else what any logarithm gives there.
HWY_INLINE V log_or_special(V x, V y) {
  const V inf = hn::Set(kF32, __builtin_inff()), zero = hn::Zero(kF32);
  const V special =
      hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), hn::Set(kF32, __builtin_nanf("")));
  return hn::IfThenElse(hn::Gt(x, zero), hn::IfThenElse(hn::Eq(x, inf), x, y), special);
}

HWY_INLINE V log(V x) {
  const LogPartsWide parts = log_parts_wide(x);
  return log_or_special(x, log_from_parts(parts.e, parts.f));
}

HWY_INLINE V log2(V x) {
  const LogPartsWide parts = log_parts_wide(x);
  const V e = parts.e, f = parts.f;
  // (log2(1 + f) - f log2(e)) / f^2: degree 8, 4.6e-9 of log2(1 + f).
  V p = hn::Set(kF32, -0x1.c39ba4p-4f);
  p = fma(p, f, hn::Set(kF32, 0x1.7f281cp-3f));
  p = fma(p, f, hn::Set(kF32, -0x1.87f7ecp-3f));
  p = fma(p, f, hn::Set(kF32, 0x1.a2c9dcp-3f));
  p = fma(p, f, hn::Set(kF32, -0x1.eaa24ap-3f));
  p = fma(p, f, hn::Set(kF32, 0x1.277f44p-2f));
  p = fma(p, f, hn::Set(kF32, -0x1.715afep-2f));
  p = fma(p, f, hn::Set(kF32, 0x1.ec7094p-2f));
  p = fma(p, f, hn::Set(kF32, -0x1.71547p-1f));
  // e + f log2(e) as high + low, but for half an ulp where e is -1.
  const V log2e = hn::Set(kF32, 0x1.715476p+0f);
  const V high = fma(f, log2e, e), low = fma(f, log2e, hn::Sub(e, high));
  p = fma(p, f, hn::Set(kF32, 0x1.4ae0cp-26f));
  return log_or_special(x, hn::Add(high, fma(p, f, low)));
}

// f64.
HWY_INLINE double log(double a) { return std::log(a); }
HWY_INLINE double log2(double a) { return std::log2(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
