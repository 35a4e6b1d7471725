// The sizes a block mask may have, and the check that refuses others. Mask layer.
#pragma once
#include <fmt/format.h>

#include <cstdint>

#include "quire/error.h"

namespace quire::mask {

inline constexpr std::int64_t kMostPosition = std::int64_t{1} << 40;      // beyond any sequence
inline constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 30) - 1;  // a run's length: 30 bits

/// Throws Error "[where] name must be in least..most; got value".
inline void check_size(const char* where, const char* name, std::int64_t value, std::int64_t least,
                       std::int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(ErrorKind::value,
              fmt::format("[{}] {} must be in {}..{}; got {}", where, name, least, most, value));
}

}  // namespace quire::mask
