// The larger or smaller of two numbers, and the largest of a chain: exactly defined for NaN and for
// zeros of both signs, which hn::Max and hn::Min are not (on x86 a NaN gives the second operand, on
// SCALAR the other one, on NEON a NaN). All exact. Kernels layer.
#pragma once
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET <= HWY_SSSE3  // x86 counts down: maxps and minps are these very definitions

// v > m ? v : m. A NaN v is swallowed, a NaN m stays, of two zeros it is m.
HWY_INLINE V max_step(V v, V m) { return hn::Max(v, m); }
HWY_INLINE VD max_step(VD v, VD m) { return hn::Max(v, m); }

// v < m ? v : m. A NaN v is swallowed, a NaN m stays, of two zeros it is m.
HWY_INLINE V min_step(V v, V m) { return hn::Min(v, m); }

#else

HWY_INLINE V max_step(V v, V m) { return hn::IfThenElse(hn::Gt(v, m), v, m); }
HWY_INLINE VD max_step(VD v, VD m) { return hn::IfThenElse(hn::Gt(v, m), v, m); }
HWY_INLINE V min_step(V v, V m) { return hn::IfThenElse(hn::Lt(v, m), v, m); }

#endif

// torch.maximum and torch.minimum: NaN when either is; of two zeros it is b.
HWY_INLINE V maximum(V a, V b) { return hn::IfThenElse(hn::Eq(a, a), max_step(a, b), a); }
HWY_INLINE V minimum(V a, V b) { return hn::IfThenElse(hn::Eq(a, a), min_step(a, b), a); }

// max(x, 0) as in torch: NaN and -0 stay what they are.
HWY_INLINE V relu(V x) { return max_step(hn::Zero(kF32), x); }

// f64.
HWY_INLINE double relu(double a) { return 0 > a ? 0 : a; }
HWY_INLINE double minimum(double a, double b) { return a != a || a < b ? a : b; }
HWY_INLINE double maximum(double a, double b) { return a != a || a > b ? a : b; }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
