// Which kernel computes a call, and how its work is cut: pure functions of sizes. Bits never depend
// on them. Plan layer.
#pragma once
#include <cstdint>

namespace quire::plan {

enum class Kernel : std::uint8_t {
  kDecode,   // few query rows per key head: keys across the lanes
  kPrefill,  // many: queries across the lanes
};

/// group: query heads per key head. Up to 12 rows per key head decode; more prefill, unless more
/// than half of the lanes would stay empty (32 heads of one query each fill 32 of 512 lanes:
/// decode, in several items). 4 heads of 3 queries: decode. 4 heads of 8: 32 of 64 lanes, prefill.
/// 1 head of 13: prefill.
Kernel choose_kernel(std::int64_t group, std::int64_t q_len);

/// Query tiles of one item: as many as fit the caches (most), fewer if threads would run out of
/// items. 512 tiles, 16 at most, 2 threads: 16. 16 tiles, 2 threads: 2.
int tiles_per_item(std::int64_t tiles, int most, std::int64_t threads);

/// Into how many items the splits of one sequence are cut when there are few (sequence, key head)
/// pairs: enough for four items per thread, whole splits each. 8 pairs, 2 threads: 1. 1 pair, 64
/// splits, 2 threads: 8. 1 pair, 3 splits: 3.
std::int64_t split_items(std::int64_t pairs, std::int64_t splits, std::int64_t threads);

}  // namespace quire::plan
