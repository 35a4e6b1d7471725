// Limits on the sizes of a block mask. Mask layer.
#pragma once
#include <cstdint>

namespace quire::mask {

inline constexpr std::int64_t kMostPosition = std::int64_t{1} << 40;  // longer than any sequence
inline constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 30) - 1;  // a run's length: 30 bits

}  // namespace quire::mask
