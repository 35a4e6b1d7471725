// Compares the cost of lists of keys apart and together. Plan layer.
#include "plan/join_queries.h"

#include <algorithm>
#include <bit>

namespace quire::plan {

using kernels::KeyList;

std::int64_t count_union(std::span<const KeyList> lists) {
  const std::int32_t* at[kMostJoinedRows];
  for (std::size_t i = 0; i < lists.size(); ++i) at[i] = lists[i].keys;
  for (std::int64_t count = 0;; ++count) {
    constexpr std::int64_t kNone = std::int64_t{1} << 32;
    std::int64_t next = kNone;
    for (std::size_t i = 0; i < lists.size(); ++i)
      if (at[i] != lists[i].keys + lists[i].count) next = std::min<std::int64_t>(next, *at[i]);
    if (next == kNone) return count;
    for (std::size_t i = 0; i < lists.size(); ++i)
      at[i] += at[i] != lists[i].keys + lists[i].count && *at[i] == next ? 1 : 0;
  }
}

int queries_to_join(std::span<const KeyList> lists, int rows) {
  // What a key costs 1, 2, 4 and 8 rows, in twentieths of what it costs one.
  static constexpr std::int64_t kCosts[] = {20, 27, 37, 55};
  const auto cost = [](int of) { return kCosts[std::bit_width(static_cast<unsigned>(of - 1))]; };
  int best = 1;
  double least = 0.9;  // a little better is not worth it: rows see different keys of a tile
  for (int together = 2; together * rows <= kMostJoinedRows; together *= 2) {
    if (static_cast<std::size_t>(together) > lists.size()) break;
    std::int64_t apart = 0;
    for (int i = 0; i < together; ++i) apart += lists[i].count;
    if (apart == 0) break;
    const std::int64_t keys = count_union(lists.first(together));
    // Neighbours that share less than a fifth of their keys do not gain more by being more.
    if (together == 2 && 10 * keys > 9 * apart) break;
    const auto joined = static_cast<double>(keys * cost(together * rows));
    const double share = joined / static_cast<double>(apart * cost(rows));
    if (share >= least) continue;
    least = share;
    best = together;
  }
  return best;
}

}  // namespace quire::plan
