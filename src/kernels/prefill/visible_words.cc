// Converts runs of keys to words of queries. Kernels layer.
#include "kernels/prefill/visible_words.h"

#include <algorithm>

#include "kernels/bit_range.h"

namespace quire::kernels {
namespace {

// Whether a list sees none or all of the keys; writes no words.
Visibility visibility(const KeyRuns& visible, int64_t key, int rows) {
  if (visible.count < 0) return Visibility::kAll;
  const KeyRun* run = first_behind(visible, key);
  const KeyRun* const end = visible.runs + visible.count;
  if (run == end || run->begin >= key + rows) return Visibility::kNone;
  int64_t at = key;
  for (; run != end && run->full && run->begin <= at && at < key + rows; ++run) at = run->end;
  return at >= key + rows ? Visibility::kAll : Visibility::kSome;
}

void add_runs(const LaneRuns& lanes, int64_t key, int rows, VisibleWords& words) {
  const uint64_t bits = bits_between(lanes.lane_begin, lanes.lane_end);
  if (lanes.visible.count < 0) {
    for (int row = 0; row < rows; ++row) words.certain[row] |= bits;
    return;
  }
  const KeyRun* const end = lanes.visible.runs + lanes.visible.count;
  for (const KeyRun* run = first_behind(lanes.visible, key); run != end; ++run) {
    if (run->begin >= key + rows) break;
    const int from = static_cast<int>(std::max<int64_t>(run->begin - key, 0));
    const int to = static_cast<int>(std::min<int64_t>(run->end - key, rows));
    uint64_t* into = run->full ? words.certain : words.asked;
    for (int row = from; row < to; ++row) into[row] |= bits;
    if (run->full) continue;
    words.asked_begin = std::min(words.asked_begin, from);
    words.asked_end = std::max(words.asked_end, to);
  }
}

}  // namespace

Visibility find_visible_words(const QueryTile& tile, int64_t key, int rows,
                              VisibleWords& words) noexcept {
  if (tile.visible == nullptr) return Visibility::kAll;
  bool all = true, none = true;
  for (int i = 0; i < tile.visible_count; ++i) {
    const Visibility one = visibility(tile.visible[i].visible, key, rows);
    all &= one == Visibility::kAll;
    none &= one == Visibility::kNone;
  }
  if (all) return Visibility::kAll;
  if (none) return Visibility::kNone;
  std::fill_n(words.certain, rows, 0);
  std::fill_n(words.asked, rows, 0);
  words.asked_begin = rows;
  words.asked_end = 0;
  for (int i = 0; i < tile.visible_count; ++i) add_runs(tile.visible[i], key, rows, words);
  return Visibility::kSome;
}

}  // namespace quire::kernels
