// VectorGroup: some vectors that go through a long function together, their operations interleaved
// step by step. One after the other, the CPU would have to look far ahead to find the next chain
// while it waits for the first. Kernels layer.
#pragma once
#include "kernels/fma-inl.h"
#include "kernels/math/minmax-inl.h"
#include "kernels/math/pow2-inl.h"
#include "kernels/math/sign-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <int kCount>
struct VectorGroup {
  V at[kCount];
  HWY_INLINE VectorGroup() {}  // an implicit one would lack the target's instructions
};

// As many as registers hold beside a function's constants. tanh on Zen 5, per vector: alone 1.24,
// in twos 1.12, in fours 1.02, in eights 1 (which spills).
constexpr int kVectorsInStep = HWY_TARGET == HWY_AVX3 ? 4 : 2;

template <class X>
inline constexpr int kGroupSize = 0;
template <int kCount>
inline constexpr int kGroupSize<VectorGroup<kCount>> = kCount;
template <class... X>
concept SomeGroup = ((kGroupSize<X> > 0) || ...);

// Vector i; one vector stands for all of a group.
HWY_INLINE V vector_of(V x, int /*i*/) { return x; }
template <int kCount>
HWY_INLINE V vector_of(const VectorGroup<kCount>& x, int i) {
  return x.at[i];
}

HWY_INLINE V add(V x, V y) { return hn::Add(x, y); }
HWY_INLINE V sub(V x, V y) { return hn::Sub(x, y); }
HWY_INLINE V mul(V x, V y) { return hn::Mul(x, y); }
HWY_INLINE V div(V x, V y) { return hn::Div(x, y); }
// x < 0 ? y : z
HWY_INLINE V if_negative(V x, V y, V z) { return hn::IfThenElse(hn::Lt(x, hn::Zero(kF32)), y, z); }

#define QUIRE_GROUP_1(function)                                                     \
  template <int kCount>                                                             \
  HWY_INLINE VectorGroup<kCount> function(const VectorGroup<kCount>& x) {           \
    VectorGroup<kCount> result;                                                     \
    QUIRE_UNROLL for (int i = 0; i < kCount; ++i) result.at[i] = function(x.at[i]); \
    return result;                                                                  \
  }
#define QUIRE_GROUP_2(function)                                   \
  template <class X, class Y>                                     \
    requires SomeGroup<X, Y>                                      \
  HWY_INLINE auto function(const X& x, const Y& y) {              \
    constexpr int kCount = HWY_MAX(kGroupSize<X>, kGroupSize<Y>); \
    VectorGroup<kCount> result;                                   \
    QUIRE_UNROLL for (int i = 0; i < kCount; ++i) result.at[i] =  \
        function(vector_of(x, i), vector_of(y, i));               \
    return result;                                                \
  }
#define QUIRE_GROUP_3(function)                                                           \
  template <class X, class Y, class Z>                                                    \
    requires SomeGroup<X, Y, Z>                                                           \
  HWY_INLINE auto function(const X& x, const Y& y, const Z& z) {                          \
    constexpr int kCount = HWY_MAX(HWY_MAX(kGroupSize<X>, kGroupSize<Y>), kGroupSize<Z>); \
    VectorGroup<kCount> result;                                                           \
    QUIRE_UNROLL for (int i = 0; i < kCount; ++i) result.at[i] =                          \
        function(vector_of(x, i), vector_of(y, i), vector_of(z, i));                      \
    return result;                                                                        \
  }
QUIRE_GROUP_1(abs)
QUIRE_GROUP_1(pow2)
QUIRE_GROUP_2(add)
QUIRE_GROUP_2(sub)
QUIRE_GROUP_2(mul)
QUIRE_GROUP_2(div)
QUIRE_GROUP_2(min_step)
QUIRE_GROUP_2(copy_sign)
QUIRE_GROUP_3(fma)
QUIRE_GROUP_3(fms)
QUIRE_GROUP_3(fnma)
QUIRE_GROUP_3(times_pow2)
QUIRE_GROUP_3(if_negative)
#undef QUIRE_GROUP_1
#undef QUIRE_GROUP_2
#undef QUIRE_GROUP_3

// f64.
HWY_INLINE double add(double a, double b) { return a + b; }
HWY_INLINE double sub(double a, double b) { return a - b; }
HWY_INLINE double mul(double a, double b) { return a * b; }
HWY_INLINE double div(double a, double b) { return a / b; }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
