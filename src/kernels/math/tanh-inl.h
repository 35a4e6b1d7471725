// tanh over the whole range: 1.94 ulp in the worst case; -0 stays -0. 10 multiply-adds, as many
// cheaper operations and a true division: hn::ApproximateReciprocal has other bits on every ISA.
// (A rational function of degree 9/8 would be a fifth quicker and have 5 ulp.) Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/vector_group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// With a = 2|x|, h = 2^(n-1) and e^-a = 2h (1 - q): tanh(|x|) = (1/2 - h + h q) / (1/2 + h - h q).
// For |x| < 0.17 n is 0, so that q = a + ... keeps every bit of a small a. From |x| = 9.01 on the
// result is 1.
// X is V or VectorGroup.
template <class X>
HWY_INLINE X tanh_in_step(const X& x) {
  const V half = hn::Set(kF32, 0.5f), shift = hn::Set(kF32, kShift - 1);
  const X size = abs(x), a = min_step(hn::Set(kF32, 40.f), add(size, size));
  const X shifted = fma(a, hn::Set(kF32, -0x1.715476p+0f), shift);  // -log2(e)
  const X n = sub(shifted, shift), h = pow2(shifted);
  const X r = fma(n, hn::Set(kF32, 0x1.62e43p-1f), a);  // log(2), good to 30 bits
  // q = 1 - e^-r = r + r^2 p: degree 6, 8.4e-9 of tanh.
  X p = fma(r, hn::Set(kF32, -0x1.673374p-10f), hn::Set(kF32, 0x1.123c36p-7f));
  p = fma(p, r, hn::Set(kF32, -0x1.555dc4p-5f));
  p = fma(p, r, hn::Set(kF32, 0x1.55548ep-3f));
  p = fma(p, r, hn::Set(kF32, -0x1.fffff4p-2f));
  const X q = fma(mul(r, r), p, r);
  const X top = fma(h, q, sub(half, h)), bottom = fnma(h, q, add(half, h));
  return copy_sign(div(top, bottom), x);
}
HWY_INLINE V tanh(V x) { return tanh_in_step(x); }
template <int kCount>
HWY_INLINE VectorGroup<kCount> tanh(const VectorGroup<kCount>& x) {
  return tanh_in_step(x);
}

// f64.
HWY_INLINE double tanh(double a) { return std::tanh(a); }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
