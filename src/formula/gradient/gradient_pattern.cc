// The decision table of gradient_pattern.h. Formula layer.
#include "formula/gradient/gradient_pattern.h"

#include "formula/compile/low_graph.h"

namespace quire::formula {

using kernels::GradientPattern;
using kernels::TileClass;

namespace {

// Whether |large| >= |small| * count: all steps of `small` together stay within one step of
// `large`.
bool clears(std::int64_t large, std::int64_t small, std::int64_t count) {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;  // beyond: products could overflow
  const auto size = [](std::int64_t x) { return x < 0 ? -x : x; };
  const auto is_near = [&](std::int64_t x) { return x > -kFar && x < kFar; };
  if (!is_near(large) || !is_near(small) || count > (std::int64_t{1} << 22)) return false;
  return size(large) >= size(small) * count;
}

// Whether two elements of a head never have the same index.
bool is_injective(const ReadForm& read) {
  return read.is_affine && read.lane_step != 0 && read.row_step != 0 &&
         (clears(read.lane_step, read.row_step, read.keys) ||
          clears(read.row_step, read.lane_step, read.queries));
}

}  // namespace

GradientPattern choose_pattern(const ReadForm& read) {
  const TileClass both = read.is_dot ? join(read.index, read.other) : read.index;
  switch (both) {
    case TileClass::kUniform:
      return GradientPattern::kUniform;
    case TileClass::kLane:
      return GradientPattern::kLane;
    case TileClass::kRow:
      return GradientPattern::kRow;
    case TileClass::kDiagonal:
      return GradientPattern::kDiagonal;
    case TileClass::kElement:
      break;
  }
  if (read.is_dot) {
    if (read.index == TileClass::kLane && read.other == TileClass::kRow)
      return GradientPattern::kDotLane;
    if (read.index == TileClass::kRow && read.other == TileClass::kLane)
      return GradientPattern::kDotRow;
    return GradientPattern::kGather;
  }
  if (!read.reads_one || !read.only_read || !is_injective(read)) return GradientPattern::kGather;
  return read.fixes_head ? GradientPattern::kOwned : GradientPattern::kShared;
}

}  // namespace quire::formula
