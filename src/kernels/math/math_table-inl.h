// The MathTable of one ISA: each function of math/ as a loop over an array. Kernels layer.
#pragma once
#include "kernels/math/erf-inl.h"
#include "kernels/math/exp-inl.h"
#include "kernels/math/exp2_softmax-inl.h"
#include "kernels/math/expm1-inl.h"
#include "kernels/math/gelu-inl.h"
#include "kernels/math/gelu_tanh-inl.h"
#include "kernels/math/log-inl.h"
#include "kernels/math/log1p-inl.h"
#include "kernels/math/math_table.h"
#include "kernels/math/minmax-inl.h"
#include "kernels/math/philox-inl.h"
#include "kernels/math/pow-inl.h"
#include "kernels/math/rounding-inl.h"
#include "kernels/math/sigmoid-inl.h"
#include "kernels/math/sign-inl.h"
#include "kernels/math/softplus-inl.h"
#include "kernels/math/sqrt-inl.h"
#include "kernels/math/tanh-inl.h"
#include "kernels/math/trig-inl.h"

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
QUIRE_UNARY(exp2)
QUIRE_UNARY(exp)
QUIRE_UNARY(expm1)
QUIRE_UNARY(exp2_softmax)
QUIRE_UNARY(log)
QUIRE_UNARY(log2)
QUIRE_UNARY(log1p)
QUIRE_UNARY(sqrt)
QUIRE_UNARY(rsqrt)
QUIRE_UNARY(sin)
QUIRE_UNARY(cos)
QUIRE_UNARY(tanh)
QUIRE_UNARY(sigmoid)
QUIRE_UNARY(erf)
QUIRE_UNARY(gelu)
QUIRE_UNARY(gelu_tanh)
QUIRE_UNARY(silu)
QUIRE_UNARY(softplus)
QUIRE_UNARY(relu)
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
    {"exp2", &apply_unary<Math_exp2>, 0.88, -kMathInf, kMathInf},
    {"exp", &apply_unary<Math_exp>, 1.02, -kMathInf, kMathInf},
    {"expm1", &apply_unary<Math_expm1>, 1.25, -kMathInf, kMathInf},
    {"exp2_softmax", &apply_unary<Math_exp2_softmax>, 2.06, -kMathInf, 127},
    {"log", &apply_unary<Math_log>, 0.94, -kMathInf, kMathInf},
    {"log2", &apply_unary<Math_log2>, 1.24, -kMathInf, kMathInf},
    {"log1p", &apply_unary<Math_log1p>, 1.48, -kMathInf, kMathInf},
    {"sqrt", &apply_unary<Math_sqrt>, 0.5, -kMathInf, kMathInf},
    {"rsqrt", &apply_unary<Math_rsqrt>, 0.51, -kMathInf, kMathInf},
    {"sin", &apply_unary<Math_sin>, 1.49, -kMathInf, kMathInf},
    {"cos", &apply_unary<Math_cos>, 1.71, -kMathInf, kMathInf},
    {"tanh", &apply_unary<Math_tanh>, 1.94, -kMathInf, kMathInf},
    {"sigmoid", &apply_unary<Math_sigmoid>, 1.97, -kMathInf, kMathInf},
    {"erf", &apply_unary<Math_erf>, 1.55, -kMathInf, kMathInf},
    {"gelu", &apply_unary<Math_gelu>, 3.84, -kMathInf, kMathInf},
    {"gelu_tanh", &apply_unary<Math_gelu_tanh>, 3.18, -kMathInf, kMathInf},
    {"silu", &apply_unary<Math_silu>, 3.19, -kMathInf, kMathInf},
    {"softplus", &apply_unary<Math_softplus>, 1.95, -kMathInf, kMathInf},
    {"relu", &apply_unary<Math_relu>, 0, -kMathInf, kMathInf},
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
