// Ranges of adjacent bits in a word; bits stand for lanes, queries or keys. Kernels layer.
#pragma once
#include <cstdint>

namespace quire::kernels {

/// Bits [begin, end) of 64, for 0 <= begin < 64; an end above 64 counts as 64.
constexpr uint64_t bits_between(int begin, int end) {
  const uint64_t below = end >= 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  return below & ~((uint64_t{1} << begin) - 1);
}

}  // namespace quire::kernels
