// VectorPair: two vectors that go through a long function together, their operations interleaved
// step by step. One after the other, the CPU would have to look far ahead to find the second chain
// while it waits for the first. Kernels layer.
#pragma once
#include "kernels/fma-inl.h"
#include "kernels/math/minmax-inl.h"
#include "kernels/math/pow2-inl.h"
#include "kernels/math/sign-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

struct VectorPair {
  V a, b;
};

HWY_INLINE V first_of(V x) { return x; }  // one vector stands for both
HWY_INLINE V first_of(const VectorPair& x) { return x.a; }
HWY_INLINE V second_of(V x) { return x; }
HWY_INLINE V second_of(const VectorPair& x) { return x.b; }

template <class... X>
concept SomePair = (std::is_same_v<X, VectorPair> || ...);

HWY_INLINE V add(V x, V y) { return hn::Add(x, y); }
HWY_INLINE V sub(V x, V y) { return hn::Sub(x, y); }
HWY_INLINE V mul(V x, V y) { return hn::Mul(x, y); }
HWY_INLINE V div(V x, V y) { return hn::Div(x, y); }

#define QUIRE_PAIR_1(function) \
  HWY_INLINE VectorPair function(const VectorPair& x) { return {function(x.a), function(x.b)}; }
#define QUIRE_PAIR_2(function)                                                         \
  template <class X, class Y>                                                          \
    requires SomePair<X, Y>                                                            \
  HWY_INLINE VectorPair function(const X& x, const Y& y) {                             \
    return {function(first_of(x), first_of(y)), function(second_of(x), second_of(y))}; \
  }
#define QUIRE_PAIR_3(function)                                         \
  template <class X, class Y, class Z>                                 \
    requires SomePair<X, Y, Z>                                         \
  HWY_INLINE VectorPair function(const X& x, const Y& y, const Z& z) { \
    return {function(first_of(x), first_of(y), first_of(z)),           \
            function(second_of(x), second_of(y), second_of(z))};       \
  }
QUIRE_PAIR_1(abs)
QUIRE_PAIR_1(pow2)
QUIRE_PAIR_2(add)
QUIRE_PAIR_2(sub)
QUIRE_PAIR_2(mul)
QUIRE_PAIR_2(div)
QUIRE_PAIR_2(min_step)
QUIRE_PAIR_2(copy_sign)
QUIRE_PAIR_3(fma)
QUIRE_PAIR_3(fnma)
#undef QUIRE_PAIR_1
#undef QUIRE_PAIR_2
#undef QUIRE_PAIR_3

// f64.
HWY_INLINE double add(double a, double b) { return a + b; }
HWY_INLINE double sub(double a, double b) { return a - b; }
HWY_INLINE double mul(double a, double b) { return a * b; }
HWY_INLINE double div(double a, double b) { return a / b; }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
