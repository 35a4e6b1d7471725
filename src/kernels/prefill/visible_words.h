// What the queries of a tile may see of 256 keys, from their lists of runs: nothing, everything, or
// words of queries per key, those that are certain and those the mask program has to decide.
// Kernels layer.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/prefill/prefill.h"

namespace quire::kernels {

enum class Visibility : uint8_t { kNone, kAll, kSome };

struct VisibleWords {
  uint64_t* certain;  // [256]: bit i if query i sees the key whatever the mask program says
  uint64_t* asked;    // [256]: bit i if the mask program decides
  int asked_begin = 0, asked_end = 0;  // rows that ask
};

/// The first run that ends behind `key`; one past the last if none does.
inline const KeyRun* first_behind(const KeyRuns& visible, int64_t key) noexcept {
  return std::upper_bound(visible.runs, visible.runs + visible.count, key,
                          [](int64_t at, const KeyRun& run) { return at < run.end; });
}

/// Words are written only for kSome. `rows` keys from `key` on.
Visibility find_visible_words(const QueryTile& tile, int64_t key, int rows,
                              VisibleWords& words) noexcept;

}  // namespace quire::kernels
