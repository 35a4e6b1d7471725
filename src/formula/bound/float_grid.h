// The floats of the precision a formula is computed in: rounding a number to one of them, and
// stepping to neighbours. Constants and ends of intervals are stored as doubles that are exactly
// such floats. Formula layer.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "quire/formula.h"

namespace quire::formula {

namespace grid_detail {

// Not inlined: from two adjacent `f32 ? double(float(x)) : x` g++ 12 (-O2 and -O3) makes one vector
// operation and loses the rounding.
[[gnu::noinline]] inline double round_to_f32(double x) { return static_cast<float>(x); }
[[gnu::noinline]] inline double round_to_f32(std::int64_t x) { return static_cast<float>(x); }

}  // namespace grid_detail

/// To the nearest number of the precision; beyond the largest, inf. The sum, product or quotient of
/// two f32 and the root of one, computed in double and rounded here, equal f32 arithmetic: 53 bits
/// are more than 2 * 24 + 2, so double rounding is harmless.
inline double round_to(double x, Precision precision) {
  return precision == Precision::kF32 ? grid_detail::round_to_f32(x) : x;
}

inline double round_to(std::int64_t x, Precision precision) {
  return precision == Precision::kF32 ? grid_detail::round_to_f32(x) : static_cast<double>(x);
}

inline double largest(Precision precision) {
  return precision == Precision::kF32 ? std::numeric_limits<float>::max()
                                      : std::numeric_limits<double>::max();
}

inline double smallest_normal(Precision precision) {
  return precision == Precision::kF32 ? std::numeric_limits<float>::min()
                                      : std::numeric_limits<double>::min();
}

/// Half the distance from 1 to the next number: the largest relative error of one rounding.
inline double unit_roundoff(Precision precision) {
  return precision == Precision::kF32 ? 0x1p-24 : 0x1p-53;
}

namespace grid_detail {

// The order of floats is that of ints once the negative ones are reversed; both zeros are 0.
template <class Float, class Int>
Float step(Float x, Int steps) {
  constexpr Int kMin = std::numeric_limits<Int>::min();
  constexpr Int kInf = std::bit_cast<Int>(std::numeric_limits<Float>::infinity());
  const Int bits = std::bit_cast<Int>(x);
  const Int order = bits < 0 ? kMin - bits : bits;
  const Int moved = std::clamp<Int>(order + steps, -kInf, kInf);
  return std::bit_cast<Float>(moved < 0 ? kMin - moved : moved);
}

}  // namespace grid_detail

/// Moves `steps` numbers up (down if negative) on the grid; stops at inf. x is not NaN.
inline double step(double x, int steps, Precision precision) {
  return precision == Precision::kF32
             ? grid_detail::step<float, std::int32_t>(static_cast<float>(x), steps)
             : grid_detail::step<double, std::int64_t>(x, steps);
}

}  // namespace quire::formula
