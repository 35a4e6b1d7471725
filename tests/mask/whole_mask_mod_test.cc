// whole_mask_mod: the rule itself for proved masks; for blocks chosen by data a formula that shows
// exactly what the listed blocks and the mask mod show together.
#include <gtest/gtest.h>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "quire/evaluate.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

const MaskMod& causal() {
  static const MaskMod mod = MaskMod::parse("q_idx >= kv_idx");
  return mod;
}

// By the meaning of the kinds: empty blocks are hidden, full ones visible, others as the rule says.
void expect_whole(const BlockMask& mask) {
  const auto [q_len, kv_len] = mask.seq_lengths();
  const Shape shape{mask.batch(), mask.heads(), q_len, kv_len};
  const EvaluateOptions options{.q_begin = mask.q_begin()};
  const Tensor whole = evaluate(mask.whole_mask_mod(), shape, options);
  const Tensor rule = evaluate(mask.mask_mod(), shape, options);
  const BlockSize size = mask.block_size();
  for (std::int64_t b = 0; b < mask.batch(); ++b) {
    for (std::int64_t h = 0; h < mask.heads(); ++h) {
      for (std::int64_t q = 0; q < q_len; ++q) {
        for (std::int64_t kv = 0; kv < kv_len; ++kv) {
          const BlockKind kind = mask.kind(b, h, q / size.q, kv / size.kv);
          const bool is_full = mask.separate_full_blocks() && kind == BlockKind::kFull;
          const bool visible =
              is_full || (kind != BlockKind::kEmpty && rule.at<bool>({b, h, q, kv}));
          ASSERT_EQ(whole.at<bool>({b, h, q, kv}), visible)
              << b << " " << h << " " << q << " " << kv;
        }
      }
    }
  }
}

TEST(WholeMaskMod, OfAProvedMaskIsItsRule) {
  const BlockMask mask = create_block_mask(causal(), 2, 3, 50, 40, {.block_size = 16});
  EXPECT_EQ(mask.whole_mask_mod().formula(), causal().formula());
}

TEST(WholeMaskMod, OfListedBlocks) {
  // Two batches, one head: block (1, 0) of the second batch is full, and visible against the rule.
  const Tensor num = Tensor::from<std::int32_t>({1, 1, 2, 0}, {2, 1, 2});
  const Tensor indices = Tensor::from<std::int32_t>({0, 1, 1, 0, 1, 0, 0, 0}, {2, 1, 2, 2});
  const Tensor full_num = Tensor::from<std::int32_t>({1, 0, 0, 2}, {2, 1, 2});
  const Tensor full_indices = Tensor::from<std::int32_t>({1, 0, 0, 0, 0, 0, 1, 0}, {2, 1, 2, 2});
  const BlockMask mask =
      BlockMask::from_kv_blocks({num, indices}, {.full = BlockLists{full_num, full_indices},
                                                 .block_size = {5, 7},
                                                 .mask_mod = causal(),
                                                 .seq_lengths = std::pair{9, 12}});
  expect_whole(mask);
  EXPECT_EQ(
      mask.whole_mask_mod().to_string(),
      "bool(full_blocks[b, 0, q_idx // 5, kv_idx // 7]) | bool(partial_blocks[b, 0, q_idx // 5, "
      "kv_idx // 7]) & (q_idx >= kv_idx)");
  expect_whole(BlockMask::from_kv_blocks({num, indices}, {.block_size = {5, 7}}));
}

// Another rule in the blocks of a proved mask: cut-off blocks ask it too, full ones do not.
TEST(WholeMaskMod, OfAReplacedRule) {
  for (const bool separate : {true, false}) {
    for (const char* text : {"q_idx + 5 >= kv_idx", "q_idx + 5 * b >= kv_idx + 9 * h"}) {
      SCOPED_TRACE(text);
      BlockMask mask =
          create_block_mask(MaskMod::parse(text), 2, 2, 37, 45,
                            {.block_size = 8, .separate_full_blocks = separate, .q_begin = 3});
      mask.set_mask_mod(MaskMod::parse("(q_idx + kv_idx) % 3 == 0"));
      expect_whole(mask);
    }
  }
}

TEST(WholeMaskMod, OfAnIndexedMaskNeedsARule) {
  BlockMask mask = create_block_mask(causal(), 1, 1, 50, 40, {.block_size = 16}).index(0, 0);
  EXPECT_THROW(mask.whole_mask_mod(), Error);
  mask.set_mask_mod(causal());
  expect_whole(mask);
}

}  // namespace
}  // namespace quire
