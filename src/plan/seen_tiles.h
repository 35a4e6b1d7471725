// SeenTiles: the whole key tiles in which any row of a task sees something, as a range with at most
// one gap; layouts write spans for these only. Plan layer.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/forward_problem.h"
#include "layout/key_layout.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

/// A range of keys with a gap that no row sees. The gap is empty where it would not save much.
struct SeenRange {
  layout::KeyRange range = {}, gap = {};

  /// The part of it in begin <= key < end.
  SeenRange between(std::int64_t begin, std::int64_t end) const {
    SeenRange part = *this;
    part.range = {std::max(range.begin, begin), std::min(range.end, end)};
    if (gap.begin >= gap.end) return part;
    if (gap.begin <= part.range.begin) {
      part.range.begin = std::max(part.range.begin, gap.end);
      part.gap = {};
    } else if (gap.end >= part.range.end) {
      part.range.end = std::min(part.range.end, gap.begin);
      part.gap = {};
    }
    return part;
  }
};

class SeenTiles {
 public:
  explicit SeenTiles(std::int64_t length) : length_(length), range_{length, 0}, gap_{0, length} {}

  void add(const kernels::KeyRuns& runs) {
    if (runs.count == 0) return;
    const bool all = runs.count < 0;
    range_.begin = std::min(range_.begin, all ? 0 : runs.runs[0].begin);
    range_.end = std::max(range_.end, all ? length_ : runs.runs[runs.count - 1].end);
    if (all) gap_ = {};
    for (std::int64_t i = 0; i < runs.count && gap_.begin < gap_.end; ++i)
      take_from_gap(runs.runs[i].begin, runs.runs[i].end);
  }
  layout::KeyRange range() const {
    if (range_.begin >= range_.end) return {};
    return {down(range_.begin), std::min(up(range_.end), length_)};
  }
  /// The gap suits streaming rules, which show the first and the last tokens.
  SeenRange seen() const {
    constexpr std::int64_t kLeast = 4 * kernels::kTileKeys;
    const layout::KeyRange all = range(), inside{up(gap_.begin), down(gap_.end)};
    if (inside.begin <= all.begin || inside.end >= all.end) return {all, {}};
    if (inside.end - inside.begin < kLeast) return {all, {}};
    return {all, inside};
  }

 private:
  static constexpr std::int64_t kTile = kernels::kTileKeys;
  static std::int64_t down(std::int64_t key) { return key / kTile * kTile; }
  static std::int64_t up(std::int64_t key) { return ceil_div(key, kTile) * kTile; }

  // Of the two parts that remain, keeps the larger.
  void take_from_gap(std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, gap_.begin);
    end = std::min(end, gap_.end);
    if (begin >= end) return;
    if (begin - gap_.begin > gap_.end - end)
      gap_.end = begin;
    else
      gap_.begin = end;
  }

  std::int64_t length_;
  layout::KeyRange range_, gap_;
};

}  // namespace quire::plan
