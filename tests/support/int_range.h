// Ranges of wrapping int64 arithmetic, just sharp enough for the random formulas to know which
// index stays inside its axis. Written apart from src/formula's bounds on purpose: tests of those
// use formulas made with these. Tests only.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "tests/support/random_buffers.h"

namespace quire::testing {

inline constexpr IntRange kAnyInt = {std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()};

inline IntRange add(IntRange a, IntRange b) {
  IntRange r{};
  return __builtin_add_overflow(a.low, b.low, &r.low) ||
                 __builtin_add_overflow(a.high, b.high, &r.high)
             ? kAnyInt
             : r;
}

inline IntRange negate(IntRange a) {
  return a.low == kAnyInt.low ? kAnyInt : IntRange{-a.high, -a.low};
}

inline IntRange multiply(IntRange a, IntRange b) {
  std::int64_t p[4];
  if (__builtin_mul_overflow(a.low, b.low, &p[0]) || __builtin_mul_overflow(a.low, b.high, &p[1]) ||
      __builtin_mul_overflow(a.high, b.low, &p[2]) || __builtin_mul_overflow(a.high, b.high, &p[3]))
    return kAnyInt;
  const auto [low, high] = std::minmax_element(p, p + 4);
  return {*low, *high};
}

inline IntRange absolute(IntRange a) {
  if (a.low >= 0) return a;
  if (a.low == kAnyInt.low) return kAnyInt;
  return {a.high < 0 ? -a.high : 0, std::max(-a.low, a.high)};
}

inline IntRange minimum(IntRange a, IntRange b) {
  return {std::min(a.low, b.low), std::min(a.high, b.high)};
}
inline IntRange maximum(IntRange a, IntRange b) {
  return {std::max(a.low, b.low), std::max(a.high, b.high)};
}
inline IntRange either(IntRange a, IntRange b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

/// The quotient rounded down by any divisor in `b`, one of 0 excluded.
inline IntRange floor_divide(IntRange a, IntRange b) {
  if (b.low <= 0) return kAnyInt;
  const auto down = [](std::int64_t x, std::int64_t y) { return x / y - (x % y < 0); };
  return {std::min(down(a.low, b.low), down(a.low, b.high)),
          std::max(down(a.high, b.low), down(a.high, b.high))};
}

inline IntRange remainder(IntRange b) {
  if (b.low > 0) return {0, b.high - 1};
  if (b.high < 0 && b.low > kAnyInt.low) return {b.low + 1, 0};
  return kAnyInt;
}

inline IntRange bit_and(IntRange a, IntRange b) {
  if (a.low >= 0 && b.low >= 0) return {0, std::min(a.high, b.high)};
  if (a.low >= 0) return {0, a.high};
  if (b.low >= 0) return {0, b.high};
  return kAnyInt;
}

/// Of | and ^.
inline IntRange bit_or(IntRange a, IntRange b) {
  if (a.low < 0 || b.low < 0) return kAnyInt;
  const std::uint64_t high = static_cast<std::uint64_t>(std::max(a.high, b.high));
  return {0, static_cast<std::int64_t>((std::uint64_t{1} << std::bit_width(high)) - 1)};
}

inline bool inside(IntRange a, std::int64_t low, std::int64_t high) {
  return a.low >= low && a.high <= high;
}

}  // namespace quire::testing
