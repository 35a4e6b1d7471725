// Division of many numbers by the same divisor: a product with its reciprocal and one or two
// corrections, which give the quotient rounded to nearest as a division would, in a third of the
// time on Zen 4. Kernels layer.
#pragma once
#include <bit>

#include "kernels/math/vector_group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

class PlainDivisor {
 public:
  explicit HWY_INLINE PlainDivisor(float c) : c_(hn::Set(kF32, c)) {}
  template <class X>
  HWY_INLINE X quotient(const X& x) const {
    return div(x, c_);
  }

 private:
  V c_;
};

// With r = 1/c rounded, q near x/c and e = x - q c, which fma computes exactly, q + e r is x/c
// rounded to nearest if q is within one unit in the last place of it and c's significand is not all
// ones (Markstein 1990). Numbers whose quotient or remainder could come near either end of the
// exponent range are divided instead.
template <int kCorrections>
class CorrectedDivisor {
 public:
  explicit HWY_INLINE CorrectedDivisor(float c) : c_(hn::Set(kF32, c)), r_(hn::Set(kF32, 1 / c)) {}

  HWY_INLINE V quotient(V x) const {
    return HWY_LIKELY(hn::AllTrue(kU32, is_ordinary(x))) ? corrected(x) : div(x, c_);
  }
  template <int kCount>
  HWY_INLINE VectorGroup<kCount> quotient(const VectorGroup<kCount>& x) const {
    auto ordinary = is_ordinary(x.at[0]);
    QUIRE_UNROLL for (int i = 1; i < kCount; ++i) ordinary =
        hn::And(ordinary, is_ordinary(x.at[i]));
    return HWY_LIKELY(hn::AllTrue(kU32, ordinary)) ? corrected(x) : div(x, c_);
  }

 private:
  template <class X>
  HWY_INLINE X corrected(const X& x) const {
    X q = mul(x, r_);
    QUIRE_UNROLL for (int i = 0; i < kCorrections; ++i) q = fma(fnma(q, c_, x), r_, q);
    return q;
  }
  // 2^-60 <= |x| < 2^61, by the exponent: where multiply-adds are the bottleneck, integers are
  // free.
  static HWY_INLINE hn::Mask<U32> is_ordinary(V x) {
    const VU twice = hn::ShiftLeft<1>(hn::BitCast(kU32, x));
    const VU from_lowest = hn::Sub(twice, hn::Set(kU32, uint32_t{127 - 60} << 24));
    return hn::Lt(from_lowest, hn::Set(kU32, uint32_t{121} << 24));
  }

  V c_, r_;
};

// How many corrections CorrectedDivisor needs for c; 0: it cannot be used. x r is within one unit
// if r is off by at most 2^-25 of its value; if not, the first correction makes it so.
HWY_INLINE int corrections_for(float c) {
#if HWY_TARGET == HWY_SCALAR
  (void)c;
  return 0;  // a division is the cheapest there
#else
  const uint32_t bits = std::bit_cast<uint32_t>(c), exponent = bits >> 23 & 0xff;
  if (exponent < 127 - 40 || exponent > 127 + 40 || (bits & 0x7fffff) == 0x7fffff) return 0;
  const double off = 1 - static_cast<double>(1 / c) * c;  // exact: the product has 48 bits
  return -0x1p-25 <= off && off <= 0x1p-25 ? 1 : 2;
#endif
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
