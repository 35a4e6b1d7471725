// Integers that wrap, as those of formulas do; signed overflow is undefined in C++. Kernels layer.
#pragma once
#include <cstdint>

namespace quire::kernels {

constexpr int64_t wrapping_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

constexpr int64_t wrapping_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

}  // namespace quire::kernels
