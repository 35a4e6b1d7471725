// check_size: rejects a number outside its range. Runtime layer.
#pragma once
#include <cstdint>
#include <string_view>

#include "runtime/fail.h"

namespace quire {

/// Throws Error "[where] name must be in least..most; got value".
inline void check_size(std::string_view where, std::string_view name, std::int64_t value,
                       std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  fail(ErrorKind::value, where, "{} must be in {}..{}; got {}", name, least, most, value);
}

}  // namespace quire
