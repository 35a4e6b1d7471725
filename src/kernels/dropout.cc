// Converts a probability to the last random word that drops a weight. No SIMD. Kernels layer.
#include "kernels/dropout.h"

#include <cmath>

#include "kernels/forward_problem.h"

namespace quire::kernels {

DropoutRule dropout_rule(const Dropout& dropout) noexcept {
  const double words = std::ceil(dropout.p * 0x1p32);  // the product is exact; 1 .. 2^32
  return {.last_dropped = static_cast<uint32_t>(static_cast<uint64_t>(words) - 1),
          .key = {static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32)},
          .scale = dropout.p < 1 ? 1 / (1 - dropout.p) : 0};  // at most 2^53
}

DropoutPlace dropout_place(int64_t b, int64_t h, int64_t q_idx, int64_t key) noexcept {
  return {.counter = static_cast<uint32_t>(key / 4),
          .q_idx = static_cast<uint32_t>(q_idx),
          .h = static_cast<uint32_t>(h),
          .b = static_cast<uint32_t>(b)};
}

}  // namespace quire::kernels
