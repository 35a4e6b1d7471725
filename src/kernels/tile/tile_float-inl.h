// Float operations of tile programs: f32 on vectors through kernels/math, f64 lane by lane through
// libm (no target for its speed, and its bits may depend on the libm). Kernels layer.
#pragma once
#include "kernels/math/functions-inl.h"
#include "kernels/tile/tile_rows-inl.h"

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

// Functors over both: vectors of f32 and single f64.
#define QUIRE_UNARY_FUNCTOR(Functor, function)                       \
  struct Functor {                                                   \
    static HWY_INLINE V apply(V a) { return function(a); }           \
    static HWY_INLINE double apply(double a) { return function(a); } \
  };
#define QUIRE_BINARY_FUNCTOR(Functor, function)                                   \
  struct Functor {                                                                \
    static HWY_INLINE V apply(V a, V b) { return function(a, b); }                \
    static HWY_INLINE double apply(double a, double b) { return function(a, b); } \
  };

struct FloatCopy {
  template <class T>
  static HWY_INLINE T apply(T a) {
    return a;
  }
};
QUIRE_UNARY_FUNCTOR(FloatNeg, neg)
QUIRE_UNARY_FUNCTOR(FloatAbs, abs)
QUIRE_UNARY_FUNCTOR(FloatSign, sign)
QUIRE_UNARY_FUNCTOR(FloatFloor, floor)
QUIRE_UNARY_FUNCTOR(FloatCeil, ceil)
QUIRE_UNARY_FUNCTOR(FloatRound, round)
QUIRE_UNARY_FUNCTOR(FloatTrunc, trunc)
#define QUIRE_FLOAT_FUNCTION(name, function, ...) QUIRE_UNARY_FUNCTOR(Float##name, function)
#include "quire/op_table.inc"
QUIRE_BINARY_FUNCTOR(FloatAdd, add)
QUIRE_BINARY_FUNCTOR(FloatSub, sub)
QUIRE_BINARY_FUNCTOR(FloatMul, mul)
QUIRE_BINARY_FUNCTOR(FloatDiv, div)
QUIRE_BINARY_FUNCTOR(FloatPow, pow)
QUIRE_BINARY_FUNCTOR(FloatMin, minimum)
QUIRE_BINARY_FUNCTOR(FloatMax, maximum)
#undef QUIRE_UNARY_FUNCTOR
#undef QUIRE_BINARY_FUNCTOR

// f32 -> f32 by a function that takes a group of vectors, some rows of a panel, in step.
template <TileFinish kFinish, class Operation>
HWY_INLINE void float_map(const TileArgs& args, const Operation& operation) {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    Finish<kFinish> finish(args, panel);
    int64_t r = 0;
    for (; r + kVectorsInStep <= at.rows; r += kVectorsInStep) {
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) {
        VectorGroup<kVectorsInStep> x;
        QUIRE_UNROLL for (int i = 0; i < kVectorsInStep; ++i) x.at[i] =
            PerLane::vector(at.a + i * at.a_row, v);
        const auto y = operation(x);
        PanelCursor row = at;
        QUIRE_UNROLL for (int i = 0; i < kVectorsInStep; ++i, row.next())
            finish.store(row, v, y.at[i]);
      }
      QUIRE_UNROLL for (int i = 0; i < kVectorsInStep; ++i) at.next();
    }
    for (; r < at.rows; ++r, at.next())
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v)
          finish.store(at, v, operation(PerLane::vector(at.a, v)));
    finish.done(args, panel);
  }
}
struct TanhInStep {
  template <class X>
  HWY_INLINE X operator()(const X& x) const {
    return tanh(x);
  }
};
struct SigmoidInStep {
  template <class X>
  HWY_INLINE X operator()(const X& x) const {
    return sigmoid(x);
  }
};
template <class Function, TileFinish kFinish>
void float_in_step(const TileArgs& args) noexcept {
  float_map<kFinish>(args, Function());
}
// x / divisor, and cap * tanh of that.
template <class Divisor>
struct Quotient {
  Divisor divisor;
  template <class X>
  HWY_INLINE X operator()(const X& x) const {
    return divisor.quotient(x);
  }
};
template <class Divisor>
struct CappedQuotient {
  Divisor divisor;
  V cap;
  template <class X>
  HWY_INLINE X operator()(const X& x) const {
    return mul(cap, tanh(divisor.quotient(x)));
  }
};
// a / b with one b for all elements, or one per row.
template <TileFinish kFinish>
void float_divide(const TileArgs& args) noexcept {
  if (args.b_row != 0) return float_binary<FloatDiv, PerLane, PerRow, kFinish>(args);
  const float b = *reinterpret_cast<const float*>(args.b);
  switch (corrections_for(b)) {
    case 1:
      return float_map<kFinish>(args, Quotient<CorrectedDivisor<1>>{CorrectedDivisor<1>(b)});
    case 2:
      return float_map<kFinish>(args, Quotient<CorrectedDivisor<2>>{CorrectedDivisor<2>(b)});
    default:
      return float_map<kFinish>(args, Quotient<PlainDivisor>{PlainDivisor(b)});
  }
}
// c * tanh(a / b) with one b and one c for all elements.
template <TileFinish kFinish>
void float_softcap(const TileArgs& args) noexcept {
  const float b = *reinterpret_cast<const float*>(args.b);
  const V cap = hn::Set(kF32, *reinterpret_cast<const float*>(args.c));
  switch (corrections_for(b)) {
    case 1:
      return float_map<kFinish>(args,
                                CappedQuotient<CorrectedDivisor<1>>{CorrectedDivisor<1>(b), cap});
    case 2:
      return float_map<kFinish>(args,
                                CappedQuotient<CorrectedDivisor<2>>{CorrectedDivisor<2>(b), cap});
    default:
      return float_map<kFinish>(args, CappedQuotient<PlainDivisor>{PlainDivisor(b), cap});
  }
}

// The last instruction of an f64 program.
template <class A, TileFinish kFinish>
void finish_f64(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    double* max = static_cast<double*>(args.max) + panel * kPanelLanes;
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
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
