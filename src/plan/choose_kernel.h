// Which kernel computes a call, and how its work is divided: pure functions of sizes. Bits never
// depend on them. Plan layer.
#pragma once
#include <cstdint>

#include "layout/chosen_keys.h"
#include "quire/attention_problem.h"

namespace quire::plan {

enum class Kernel : std::uint8_t {
  kDecode,   // few query rows per key head; keys across the lanes
  kPrefill,  // many query rows; queries across the lanes
  kChosen,   // many queries that chose their keys; decoded query by query
};

/// Up to this many rows per key head (group: query heads per key head) decode whatever the length:
/// one pass over the keys serves them, whatever the type.
inline constexpr std::int64_t kDecodeRowsAlways = 12;
/// Over long keys one pass, or of codes two or three, still beats half-empty lanes (f32, D = 128:
/// 24 rows take 2.6 ms over 8 x 8,192 keys, 32 rows by prefill 3.1).
inline constexpr std::int64_t kDecodeRowsLong = 24;
inline constexpr std::int64_t kLongKeys = 1024;

/// More rows prefill, unless more than half of the lanes would stay empty. 4 heads of 3 queries:
/// decode. 1 head of 16: prefill over 100 keys, decode over 8,192. 4 heads of 8: 32 of 64 lanes,
/// prefill. 64 heads of 1: 64 of 1,024 lanes, decode.
Kernel choose_kernel(std::int64_t group, std::int64_t q_len, std::int64_t kv_len);

/// A sequence of which queries chose their keys.
struct ChosenLists {
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t keys = 0;      // of a list, on average
  std::int64_t together = 1;  // heads of a key head that share a list
  bool pairs = false;         // bf16 numbers are multiplied in pairs
};

/// The same where queries chose their keys. Query by query, only the chosen keys are read, once for
/// all heads that share them; tiles of queries compute nearly everything in between as well, and
/// with pairs twice as fast, while a walk computes whole units of 16 keys then. One query: decode.
/// 4,096 queries of 512 keys of 4,096, 8 heads together: query by query; 2,048 keys, or pairs:
/// tiles.
Kernel choose_kernel_of_lists(std::int64_t group, const ChosenLists& lists);

/// How many queries that chose their keys decode together (kernels::ChosenItem). Heads that share
/// a choice decode as rows of a query. 8 heads together: 16. By head: 128, head after head.
std::int64_t chosen_queries_at_once(const layout::ChosenKeys& chosen, std::int64_t group,
                                    std::int64_t most_rows);

/// The kernel for a sequence of a call, given its lengths.
Kernel kernel_of_sequence(const AttentionProblem& problem, std::int64_t sequence,
                          std::int64_t q_len, std::int64_t kv_len);

/// Query tiles of one item: as many as fit the caches (`most`), fewer if threads would run out of
/// items. 512 tiles, 16 at most, 2 threads: 16. 16 tiles, 2 threads: 2.
int tiles_per_item(std::int64_t tiles, int most, std::int64_t threads);

/// Rows of the first task when `rows` rows of a key head decode and the kernel takes `most` at once
/// (kernels::most_decode_rows): all if one pass over the keys can serve them, else what blocks of
/// registers hold. 12 at most: 12: 12. 13: 8, then 5. 20: 8, then 12. 32 at most: 13: 13. 128: four
/// times 32. 40: 32, then 8.
std::int64_t decode_rows_at_once(std::int64_t rows, std::int64_t most);

/// Into how many items the splits of one sequence are cut when there are few (sequence, key head)
/// pairs: enough for four items per thread, whole splits each. 8 pairs, 2 threads: 1. 1 pair, 64
/// splits, 2 threads: 8. 1 pair, 3 splits: 3.
std::int64_t split_items(std::int64_t pairs, std::int64_t splits, std::int64_t threads);

/// Whether a call is over before other threads have woken up: up to 2^20 multiply-adds, some 20 us
/// on one core. The calling thread then does it alone.
bool is_for_one_thread(double multiply_adds);

/// Whether tensors of so many bytes will not be in the caches, so that prefetching the memory of
/// later tasks pays. It costs a third of the time of a sequence of 32 or 64 keys that is in L3.
/// L3 of 32 MiB: from 24 MiB on. L3 not known: from 4 MiB on. 260 MiB, of which a virtual machine
/// has a part: as 32 MiB.
bool come_from_memory(std::int64_t bytes, std::int64_t l3_bytes);

}  // namespace quire::plan
