// Which of 256 keys the queries of a tile may see, from their lists of runs: none, all, or for each
// key a word of queries that see it and one of queries for which the mask program has to decide.
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

/// The first run that ends after `key`; one past the last if none does.
inline const KeyRun* first_behind(const KeyRuns& visible, int64_t key) noexcept {
  return std::upper_bound(visible.runs, visible.runs + visible.count, key,
                          [](int64_t at, const KeyRun& run) { return at < run.end; });
}

/// Words are written only for kSome. `rows` keys from `key` on.
Visibility find_visible_words(const QueryTile& tile, int64_t key, int rows,
                              VisibleWords& words) noexcept;

}  // namespace quire::kernels
