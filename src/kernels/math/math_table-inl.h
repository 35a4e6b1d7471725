// The MathTable of one ISA: each function of math/ as a loop over an array. Kernels layer.
#pragma once
#include "kernels/attention_order.h"
#include "kernels/math/exp2_softmax-inl.h"
#include "kernels/math/functions-inl.h"
#include "kernels/math/math_table.h"
#include "kernels/math/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// A function as a type, because an always_inline function has no address to pass.
#define QUIRE_UNARY(name)                              \
  struct Math_##name {                                 \
    static HWY_INLINE V apply(V x) { return name(x); } \
  };
#define QUIRE_BINARY(name)                                     \
  struct Math_##name {                                         \
    static HWY_INLINE V apply(V a, V b) { return name(a, b); } \
  };
#define QUIRE_FLOAT_FUNCTION(name, function, ...) QUIRE_UNARY(function)
#include "quire/op_table.inc"
QUIRE_UNARY(floor)
QUIRE_UNARY(ceil)
QUIRE_UNARY(round)
QUIRE_UNARY(trunc)
QUIRE_UNARY(abs)
QUIRE_UNARY(neg)
QUIRE_UNARY(sign)
QUIRE_BINARY(pow)
QUIRE_BINARY(minimum)
QUIRE_BINARY(maximum)
QUIRE_BINARY(max_step)
QUIRE_BINARY(min_step)
// The softmax's exponential, of natural scores.
struct Math_exp_softmax {
  static HWY_INLINE V apply(V x) { return exp2_softmax(x, hn::Set(kF32, float(kLog2e))); }
};
#undef QUIRE_UNARY
#undef QUIRE_BINARY

template <class F>
void apply_unary(const float* in, float* out, size_t n) noexcept {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(F::apply(hn::LoadU(kF32, in + i)), kF32, out + i);
  if (i == n) return;
  HWY_ALIGN float last[kLanes] = {};
  for (size_t j = i; j < n; ++j) last[j - i] = in[j];
  hn::Store(F::apply(hn::Load(kF32, last)), kF32, last);
  for (size_t j = i; j < n; ++j) out[j] = last[j - i];
}

template <class F>
void apply_binary(const float* a, const float* b, float* out, size_t n) noexcept {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(F::apply(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i)), kF32, out + i);
  if (i == n) return;
  HWY_ALIGN float x[kLanes] = {}, y[kLanes] = {};
  for (size_t j = i; j < n; ++j) x[j - i] = a[j], y[j - i] = b[j];
  hn::Store(F::apply(hn::Load(kF32, x), hn::Load(kF32, y)), kF32, x);
  for (size_t j = i; j < n; ++j) out[j] = x[j - i];
}

inline void apply_philox(const uint32_t* counters, const uint32_t* key, uint32_t* words,
                         size_t n) noexcept {
  const uint32_t both[2] = {key[0], key[1]};
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t count = HWY_MIN(kLanes, n - i);
    HWY_ALIGN uint32_t lanes[4][kLanes] = {};
    VU x[4];
    for (size_t w = 0; w < 4; ++w) {
      for (size_t j = 0; j < count; ++j) lanes[w][j] = counters[(i + j) * 4 + w];
      x[w] = hn::Load(kU32, lanes[w]);
    }
    philox(x, both);
    for (size_t w = 0; w < 4; ++w) {
      hn::Store(x[w], kU32, lanes[w]);
      for (size_t j = 0; j < count; ++j) words[(i + j) * 4 + w] = lanes[w][j];
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

// Data only, so outside HWY_BEFORE_NAMESPACE. The bounds are the largest errors over all 2^32
// floats (pow: over some 10^8 pairs), rounded up.
namespace quire::kernels::QUIRE_ISA_NS {

constexpr float kMathInf = __builtin_inff();

constexpr MathTable::Entry kUnaryMath[] = {
#define QUIRE_FLOAT_FUNCTION(name, function, ulps, ...) \
  {#function, &apply_unary<Math_##function>, ulps, -kMathInf, kMathInf},
#include "quire/op_table.inc"
    {"exp_softmax", &apply_unary<Math_exp_softmax>, 2.2, -kMathInf, 88},
    {"floor", &apply_unary<Math_floor>, 0, -kMathInf, kMathInf},
    {"ceil", &apply_unary<Math_ceil>, 0, -kMathInf, kMathInf},
    {"round", &apply_unary<Math_round>, 0, -kMathInf, kMathInf},
    {"trunc", &apply_unary<Math_trunc>, 0, -kMathInf, kMathInf},
    {"abs", &apply_unary<Math_abs>, 0, -kMathInf, kMathInf},
    {"neg", &apply_unary<Math_neg>, 0, -kMathInf, kMathInf},
    {"sign", &apply_unary<Math_sign>, 0, -kMathInf, kMathInf},
};

constexpr MathTable::BinaryEntry kBinaryMath[] = {
    {"pow", &apply_binary<Math_pow>, 0.51},        {"minimum", &apply_binary<Math_minimum>, 0},
    {"maximum", &apply_binary<Math_maximum>, 0},   {"max_step", &apply_binary<Math_max_step>, 0},
    {"min_step", &apply_binary<Math_min_step>, 0},
};

constexpr MathTable kMathTable{
    .philox = &apply_philox,
    .unary = kUnaryMath,
    .unary_count = sizeof(kUnaryMath) / sizeof(kUnaryMath[0]),
    .binary = kBinaryMath,
    .binary_count = sizeof(kBinaryMath) / sizeof(kBinaryMath[0]),
};

}  // namespace quire::kernels::QUIRE_ISA_NS
