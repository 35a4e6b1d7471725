// SeenTiles: the range of whole key tiles in which any row of a task sees something; layouts write
// spans for this range only. Plan layer.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/forward_problem.h"
#include "layout/key_layout.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

class SeenTiles {
 public:
  explicit SeenTiles(std::int64_t length) : length_(length), range_{length, 0} {}

  void add(const kernels::KeyRuns& runs) {
    if (runs.count == 0) return;
    const bool all = runs.count < 0;
    range_.begin = std::min(range_.begin, all ? 0 : runs.runs[0].begin);
    range_.end = std::max(range_.end, all ? length_ : runs.runs[runs.count - 1].end);
  }
  layout::KeyRange range() const {
    if (range_.begin >= range_.end) return {};
    constexpr std::int64_t kTile = kernels::kTileKeys;
    return {range_.begin / kTile * kTile, std::min(ceil_div(range_.end, kTile) * kTile, length_)};
  }

 private:
  std::int64_t length_;
  layout::KeyRange range_;
};

}  // namespace quire::plan
