// Float operations of tile programs: f32 on vectors through kernels/math, f64 lane by lane through
// libm (no target for its speed, and its bits may depend on the libm). Kernels layer.
#pragma once
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
#include "kernels/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Float floor division and remainder, exactly as Python: fmod is exact, so no multiple of b is ever
// missed. A divisor of 0 gives a / b and NaN.
template <class T>
HWY_INLINE T python_mod(T a, T b) {
  const T rest = std::fmod(a, b);
  if (rest != 0) return (b < 0) != (rest < 0) ? rest + b : rest;
  return std::copysign(T{0}, b);
}
template <class T>
HWY_INLINE T python_floor_div(T a, T b) {
  if (b == 0) return a / b;
  const T rest = std::fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(T{0}, a / b);
  const T floor = std::floor(quotient);
  return quotient - floor > T{0.5} ? floor + 1 : floor;
}
struct FloorDivLane {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return python_floor_div(a, b);
  }
};
struct ModLane {
  template <class T>
  static HWY_INLINE T apply(T a, T b) {
    return python_mod(a, b);
  }
};

// clang-format off
struct FloatCopy { static HWY_INLINE V apply(V a) { return a; } static HWY_INLINE double apply(double a) { return a; } };
struct FloatNeg { static HWY_INLINE V apply(V a) { return neg(a); } static HWY_INLINE double apply(double a) { return -a; } };
struct FloatAbs { static HWY_INLINE V apply(V a) { return abs(a); } static HWY_INLINE double apply(double a) { return std::fabs(a); } };
struct FloatSign { static HWY_INLINE V apply(V a) { return sign(a); } static HWY_INLINE double apply(double a) { return a > 0 ? 1 : a < 0 ? -1 : a + 0.0; } };
struct FloatFloor { static HWY_INLINE V apply(V a) { return floor(a); } static HWY_INLINE double apply(double a) { return std::floor(a); } };
struct FloatCeil { static HWY_INLINE V apply(V a) { return ceil(a); } static HWY_INLINE double apply(double a) { return std::ceil(a); } };
struct FloatRound { static HWY_INLINE V apply(V a) { return round(a); } static HWY_INLINE double apply(double a) { return std::nearbyint(a); } };
struct FloatTrunc { static HWY_INLINE V apply(V a) { return trunc(a); } static HWY_INLINE double apply(double a) { return std::trunc(a); } };
struct FloatExp { static HWY_INLINE V apply(V a) { return exp(a); } static HWY_INLINE double apply(double a) { return std::exp(a); } };
struct FloatExp2 { static HWY_INLINE V apply(V a) { return exp2(a); } static HWY_INLINE double apply(double a) { return std::exp2(a); } };
struct FloatExpm1 { static HWY_INLINE V apply(V a) { return expm1(a); } static HWY_INLINE double apply(double a) { return std::expm1(a); } };
struct FloatLog { static HWY_INLINE V apply(V a) { return log(a); } static HWY_INLINE double apply(double a) { return std::log(a); } };
struct FloatLog2 { static HWY_INLINE V apply(V a) { return log2(a); } static HWY_INLINE double apply(double a) { return std::log2(a); } };
struct FloatLog1p { static HWY_INLINE V apply(V a) { return log1p(a); } static HWY_INLINE double apply(double a) { return std::log1p(a); } };
struct FloatSqrt { static HWY_INLINE V apply(V a) { return sqrt(a); } static HWY_INLINE double apply(double a) { return std::sqrt(a); } };
struct FloatRsqrt { static HWY_INLINE V apply(V a) { return rsqrt(a); } static HWY_INLINE double apply(double a) { return 1 / std::sqrt(a); } };
struct FloatSin { static HWY_INLINE V apply(V a) { return sin(a); } static HWY_INLINE double apply(double a) { return std::sin(a); } };
struct FloatCos { static HWY_INLINE V apply(V a) { return cos(a); } static HWY_INLINE double apply(double a) { return std::cos(a); } };
struct FloatTanh { static HWY_INLINE V apply(V a) { return tanh(a); } static HWY_INLINE double apply(double a) { return std::tanh(a); } };
struct FloatSigmoid { static HWY_INLINE V apply(V a) { return sigmoid(a); } static HWY_INLINE double apply(double a) { return 1 / (1 + std::exp(-a)); } };
struct FloatErf { static HWY_INLINE V apply(V a) { return erf(a); } static HWY_INLINE double apply(double a) { return std::erf(a); } };
struct FloatRelu { static HWY_INLINE V apply(V a) { return relu(a); } static HWY_INLINE double apply(double a) { return 0 > a ? 0 : a; } };
struct FloatGelu { static HWY_INLINE V apply(V a) { return gelu(a); } static HWY_INLINE double apply(double a) { return a * 0.5 * std::erfc(a * -0.70710678118654752440); } };
struct FloatGeluTanh { static HWY_INLINE V apply(V a) { return gelu_tanh(a); } static HWY_INLINE double apply(double a) { return 0.5 * a * (1 + std::tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a))); } };
struct FloatSilu { static HWY_INLINE V apply(V a) { return silu(a); } static HWY_INLINE double apply(double a) { return a / (1 + std::exp(-a)); } };
struct FloatSoftplus { static HWY_INLINE V apply(V a) { return softplus(a); } static HWY_INLINE double apply(double a) { return (0 > a ? 0 : a) + std::log1p(std::exp(-std::fabs(a))); } };

struct FloatAdd { static HWY_INLINE V apply(V a, V b) { return hn::Add(a, b); } static HWY_INLINE double apply(double a, double b) { return a + b; } };
struct FloatSub { static HWY_INLINE V apply(V a, V b) { return hn::Sub(a, b); } static HWY_INLINE double apply(double a, double b) { return a - b; } };
struct FloatMul { static HWY_INLINE V apply(V a, V b) { return hn::Mul(a, b); } static HWY_INLINE double apply(double a, double b) { return a * b; } };
struct FloatDiv { static HWY_INLINE V apply(V a, V b) { return hn::Div(a, b); } static HWY_INLINE double apply(double a, double b) { return a / b; } };
struct FloatPow { static HWY_INLINE V apply(V a, V b) { return pow(a, b); } static HWY_INLINE double apply(double a, double b) { return std::pow(a, b); } };
struct FloatMin { static HWY_INLINE V apply(V a, V b) { return minimum(a, b); } static HWY_INLINE double apply(double a, double b) { return a != a || a < b ? a : b; } };
struct FloatMax { static HWY_INLINE V apply(V a, V b) { return maximum(a, b); } static HWY_INLINE double apply(double a, double b) { return a != a || a > b ? a : b; } };
// clang-format on

// The last instruction of an f64 program.
template <class A, TileFinish kFinish>
void finish_f64(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    double* max = static_cast<double*>(args.max) + panel * kPanelLanes;
    for (int64_t r = 0; r < args.rows; ++r, at.next(args)) {
      uint16_t visible = 0xffff;
      if constexpr (kFinish == TileFinish::kMaskedScore) std::memcpy(&visible, at.visible, 2);
      double result[kPanelLanes];
      for (size_t j = 0; j < kPanelLanes; ++j) {
        result[j] = visible >> j & 1 ? A::template lane<double>(at.a, j) : -__builtin_inf();
        max[j] = result[j] > max[j] ? result[j] : max[j];
      }
      store_panel(at.out, result);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
