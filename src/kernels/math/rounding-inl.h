// Rounding to an integer: floor, ceil, round (half to even), trunc. Exact; a result of 0 keeps the
// sign of x, as in libm; inf and NaN stay. On SCALAR libm itself, because hn::Floor(-0) is +0 there
// and hn::Ceil(+0) is -0. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE V floor(V x) { return V(std::floor(x.raw)); }
HWY_INLINE V ceil(V x) { return V(std::ceil(x.raw)); }
HWY_INLINE V round(V x) { return V(std::nearbyint(x.raw)); }
HWY_INLINE V trunc(V x) { return V(std::trunc(x.raw)); }

#else

HWY_INLINE V floor(V x) { return hn::Floor(x); }
HWY_INLINE V ceil(V x) { return hn::Ceil(x); }
HWY_INLINE V round(V x) { return hn::Round(x); }
HWY_INLINE V trunc(V x) { return hn::Trunc(x); }

#endif

// f64.
HWY_INLINE double floor(double a) { return std::floor(a); }
HWY_INLINE double ceil(double a) { return std::ceil(a); }
HWY_INLINE double round(double a) { return std::nearbyint(a); }
HWY_INLINE double trunc(double a) { return std::trunc(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
