// All functions of floats that formulas have: f32 on vectors, in files of their own, and f64 one
// number at a time. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/math/divide-inl.h"
#include "kernels/math/erf-inl.h"
#include "kernels/math/exp-inl.h"
#include "kernels/math/expm1-inl.h"
#include "kernels/math/gelu-inl.h"
#include "kernels/math/gelu_tanh-inl.h"
#include "kernels/math/log-inl.h"
#include "kernels/math/log1p-inl.h"
#include "kernels/math/minmax-inl.h"
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

// f64, by libm.
HWY_INLINE double add(double a, double b) { return a + b; }
HWY_INLINE double sub(double a, double b) { return a - b; }
HWY_INLINE double mul(double a, double b) { return a * b; }
HWY_INLINE double div(double a, double b) { return a / b; }
HWY_INLINE double neg(double a) { return -a; }
HWY_INLINE double abs(double a) { return std::fabs(a); }
HWY_INLINE double sign(double a) { return a > 0 ? 1 : a < 0 ? -1 : a + 0.0; }
HWY_INLINE double floor(double a) { return std::floor(a); }
HWY_INLINE double ceil(double a) { return std::ceil(a); }
HWY_INLINE double round(double a) { return std::nearbyint(a); }
HWY_INLINE double trunc(double a) { return std::trunc(a); }
HWY_INLINE double exp(double a) { return std::exp(a); }
HWY_INLINE double exp2(double a) { return std::exp2(a); }
HWY_INLINE double expm1(double a) { return std::expm1(a); }
HWY_INLINE double log(double a) { return std::log(a); }
HWY_INLINE double log2(double a) { return std::log2(a); }
HWY_INLINE double log1p(double a) { return std::log1p(a); }
HWY_INLINE double sqrt(double a) { return std::sqrt(a); }
HWY_INLINE double rsqrt(double a) { return 1 / std::sqrt(a); }
HWY_INLINE double sin(double a) { return std::sin(a); }
HWY_INLINE double cos(double a) { return std::cos(a); }
HWY_INLINE double tanh(double a) { return std::tanh(a); }
HWY_INLINE double sigmoid(double a) { return 1 / (1 + std::exp(-a)); }
HWY_INLINE double erf(double a) { return std::erf(a); }
HWY_INLINE double relu(double a) { return 0 > a ? 0 : a; }
HWY_INLINE double gelu(double a) { return a * 0.5 * std::erfc(a * -0.70710678118654752440); }
// a/2 (1 + tanh(u)) as a sigmoid(2u): no digits are lost where 1 + tanh cancels.
HWY_INLINE double gelu_tanh(double a) {
  return a * sigmoid(2 * 0.79788456080286535588 * (a + 0.044715 * a * a * a));
}
HWY_INLINE double silu(double a) { return a / (1 + std::exp(-a)); }
HWY_INLINE double softplus(double a) {
  return (0 > a ? 0 : a) + std::log1p(std::exp(-std::fabs(a)));
}
HWY_INLINE double pow(double a, double b) { return std::pow(a, b); }
HWY_INLINE double minimum(double a, double b) { return a != a || a < b ? a : b; }
HWY_INLINE double maximum(double a, double b) { return a != a || a > b ? a : b; }

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
