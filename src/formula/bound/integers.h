// The limits of int64, and division that rounds down as in Python. Formula layer.
#pragma once
#include <cstdint>
#include <limits>

namespace quire::formula {

inline constexpr std::int64_t kMinInt = std::numeric_limits<std::int64_t>::min();
inline constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();

/// The divisor is neither 0 nor, for kMinInt, -1.
inline std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

}  // namespace quire::formula
