// ceil_div: integer division that rounds up. Runtime layer.
#pragma once
#include <cstdint>

namespace quire {

/// a / b rounded up, for a >= 0 and b >= 1; a + b need not fit into 63 bits.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

}  // namespace quire
