// Replaces queries and keys without channels by one channel of zeros, the form the kernels take.
// Every score is 0 either way, so a row's weights are those of its score mod and mask alone. Plan
// layer.
#pragma once
#include <cstdint>

#include "quire/tensor.h"

namespace quire::plan {

/// 0 in every dtype.
inline constexpr std::uint64_t kZeroChannel = 0;

/// [batch, heads, len, 0] as [batch, heads, len, 1].
inline ConstTensorView with_channel(const ConstTensorView& view) {
  const Shape& s = view.shape();
  return ConstTensorView(&kZeroChannel, view.dtype(), {s[0], s[1], s[2], 1}, {0, 0, 0, 0});
}

}  // namespace quire::plan
