// a*b + c rounded once, on every target, with or without the instruction: fma, fms (a*b - c) and
// fnma (c - a*b). hn::MulAdd and its kin are two roundings on SCALAR and must not be called
// elsewhere in kernels/; -ffp-contract=off keeps the compiler from the reverse. Targets of 4 lanes
// without the instruction (SSE4) are not supported. Kernels layer.
#pragma once
#include <bit>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET == HWY_SCALAR

// The product of two floats is exact in double. The sum is rounded to odd (Boldo & Melquiond 2008),
// which makes the second rounding, to float, the only one that counts. std::fma would do, at 0.01
// GF/s where the CPU has no FMA; this runs at 1.
HWY_INLINE float fma_lane(float a, float b, float c) {
  const double p = double(a) * double(b), x = double(c);
  const double s = p + x, t = s - p, error = (p - (s - t)) + (x - t);
  uint64_t bits = std::bit_cast<uint64_t>(s);
  const bool inexact = error > 0 || error < 0;  // false for NaN, which inf gives
  if (inexact && (bits & 1) == 0) bits += ((error > 0) == (s > 0)) ? 1 : uint64_t(-1);
  return float(std::bit_cast<double>(bits));
}

HWY_INLINE V fma(V a, V b, V c) { return V(fma_lane(a.raw, b.raw, c.raw)); }
HWY_INLINE V fms(V a, V b, V c) { return V(fma_lane(a.raw, b.raw, -c.raw)); }
HWY_INLINE V fnma(V a, V b, V c) { return V(fma_lane(-a.raw, b.raw, c.raw)); }

// The C library's, which uses the instruction where there is one.
HWY_INLINE VD fma(VD a, VD b, VD c) { return VD(__builtin_fma(a.raw, b.raw, c.raw)); }
HWY_INLINE VD fms(VD a, VD b, VD c) { return VD(__builtin_fma(a.raw, b.raw, -c.raw)); }

#else
#if !HWY_NATIVE_FMA
#error "this target has no fused multiply-add"
#endif

HWY_INLINE V fma(V a, V b, V c) { return hn::MulAdd(a, b, c); }
HWY_INLINE V fms(V a, V b, V c) { return hn::MulSub(a, b, c); }
HWY_INLINE V fnma(V a, V b, V c) { return hn::NegMulAdd(a, b, c); }
HWY_INLINE VD fma(VD a, VD b, VD c) { return hn::MulAdd(a, b, c); }
HWY_INLINE VD fms(VD a, VD b, VD c) { return hn::MulSub(a, b, c); }

#endif

// The same for an accumulator in a block of registers. g++ 12 sometimes makes a factor the
// destination register. Accumulators then move from register to register, and where there are only
// 16, two of twelve go through memory: 0.90 of the peak instead of 0.97.
#if HWY_TARGET == HWY_AVX2
HWY_INLINE V fma_in_place(V a, V b, V acc) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(acc.raw) : "x"(a.raw), "x"(b.raw));
  return acc;
}
HWY_INLINE VD fma_in_place(VD a, VD b, VD acc) {
  asm("vfmadd231pd %2, %1, %0" : "+x"(acc.raw) : "x"(a.raw), "x"(b.raw));
  return acc;
}
#else
HWY_INLINE V fma_in_place(V a, V b, V acc) { return fma(a, b, acc); }
HWY_INLINE VD fma_in_place(VD a, VD b, VD acc) { return fma(a, b, acc); }
#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
