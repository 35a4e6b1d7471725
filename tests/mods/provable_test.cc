// The formulas of masks are such that intervals decide every block that is empty or full: the
// reason why a block mask of them costs less than its area.
#include <gtest/gtest.h>

#include <algorithm>

#include "formula/bound/bound.h"
#include "formula/simplify/simplify.h"
#include "quire/evaluate.h"
#include "quire/mods.h"

namespace quire::mods {
namespace {

constexpr std::int64_t kBlock = 128;

struct Counts {
  std::int64_t blocks = 0;
  std::int64_t proved = 0;
  std::int64_t missed = 0;  // empty or full, and not proved
};

Counts count_blocks(const MaskMod& mask, const GallerySizes& at) {
  const MaskMod simple(formula::simplify(mask.formula(), Precision::kF32));
  const formula::Bounder bounder(simple.formula(), Precision::kF32);
  std::vector<formula::Interval> scratch = bounder.make_scratch();
  Counts counts;
  for (std::int64_t h = 0; h < at.heads; ++h)
    for (std::int64_t q = 0; q < at.q_len; q += kBlock) {
      const Tensor rows = evaluate(mask, {1, at.heads, kBlock, at.kv_len}, {.q_begin = q});
      for (std::int64_t kv = 0; kv < at.kv_len; kv += kBlock) {
        ++counts.blocks;
        const formula::Tri tri =
            bounder.classify({{0, 0}, {h, h}, {q, q + kBlock - 1}, {kv, kv + kBlock - 1}}, scratch);
        std::int64_t visible = 0;
        for (std::int64_t row = 0; row < kBlock; ++row) {
          const bool* first = &rows.at<bool>({0, h, row, kv});
          visible += std::count(first, first + kBlock, true);
        }
        if (tri != formula::Tri::kUnknown) {
          ++counts.proved;
          EXPECT_EQ(visible, tri == formula::Tri::kTrue ? kBlock * kBlock : 0);
        } else if (visible == 0 || visible == kBlock * kBlock) {
          ++counts.missed;
        }
      }
    }
  return counts;
}

TEST(Provable, NoEmptyOrFullBlockIsMissed) {
  for (const GalleryEntry& entry : gallery()) {
    if (entry.kind != GalleryEntry::Kind::kMask) continue;
    const GallerySizes at = {.q_len = 4096, .kv_len = 4096, .heads = entry.sizes.heads};
    const Counts counts = count_blocks(entry.mask_mod(at), at);
    EXPECT_EQ(counts.missed, 0) << entry.name << ": of " << counts.blocks << " blocks "
                                << counts.proved << " are proved";
    EXPECT_GT(2 * counts.proved, counts.blocks) << entry.name;
  }
}

}  // namespace
}  // namespace quire::mods
