// Which kernel computes a call, and how its work is cut: pure functions of sizes. Bits never depend
// on them. Plan layer.
#pragma once
#include <cstdint>

namespace quire::plan {

enum class Kernel : std::uint8_t {
  kDecode,   // few query rows per key head: keys across the lanes
  kPrefill,  // many: queries across the lanes
};

/// Rows per key head (group: query heads per key head) that decode whatever the length: they fit
/// the registers in one pass over the keys.
inline constexpr std::int64_t kDecodeRowsAlways = 12;
/// Over long keys two or three passes still beat lanes half empty (f32, D = 128: equal at 24 rows).
inline constexpr std::int64_t kDecodeRowsLong = 24;
inline constexpr std::int64_t kLongKeys = 1024;

/// More rows prefill, unless more than half of the lanes would stay empty. 4 heads of 3 queries:
/// decode. 1 head of 16: prefill over 100 keys, decode over 8,192. 4 heads of 8: 32 of 64 lanes,
/// prefill. 64 heads of 1: 64 of 1,024 lanes, decode.
Kernel choose_kernel(std::int64_t group, std::int64_t q_len, std::int64_t kv_len);

/// Query tiles of one item: as many as fit the caches (most), fewer if threads would run out of
/// items. 512 tiles, 16 at most, 2 threads: 16. 16 tiles, 2 threads: 2.
int tiles_per_item(std::int64_t tiles, int most, std::int64_t threads);

/// Rows of the first task when `rows` rows of a key head decode: all if one pass over the keys can
/// serve them, else eight, which is what registers hold. 12: 12. 13: 8, then 5. 20: 8, then 12.
std::int64_t decode_rows_at_once(std::int64_t rows);

/// Into how many items the splits of one sequence are cut when there are few (sequence, key head)
/// pairs: enough for four items per thread, whole splits each. 8 pairs, 2 threads: 1. 1 pair, 64
/// splits, 2 threads: 8. 1 pair, 3 splits: 3.
std::int64_t split_items(std::int64_t pairs, std::int64_t splits, std::int64_t threads);

/// How many tasks a thread takes at once, `work` being the keys of the largest: short ones lie side
/// by side in memory and are best done in a row. 4,096 tasks of 16 keys, 2 threads: 128. 4,096 of
/// 8,192 keys: 1. 100 of 16: 3.
std::int64_t tasks_at_once(std::int64_t tasks, std::int64_t work, std::int64_t threads);

/// Whether a call is over before other threads have woken up: up to 2^20 multiply-adds, some 20 us
/// on one core. The calling thread then does it alone.
bool is_for_one_thread(double multiply_adds);

}  // namespace quire::plan
