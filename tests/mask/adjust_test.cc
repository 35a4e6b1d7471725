// BlockMask::adjust: the blocks that remain are those that were there.
#include <gtest/gtest.h>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "quire/evaluate.h"
#include "tests/support/expect_error.h"
#include "tests/support/torch_block_mask.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::tensor_text;

BlockMask per_head() {
  return create_block_mask(MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)"), 2, 2, 7, 9,
                           {.block_size = {4, 3}});
}

// mask._adjust(4, 9) of torch 2.13.
TEST(Adjust, FewerRowsAsTorch) {
  const BlockMask mask = per_head().adjust(4, 9);
  EXPECT_EQ(mask.shape(), (Shape{2, 2, 4, 9}));
  EXPECT_EQ(tensor_text(mask.kv_num_blocks()), "[2, 2, 1] i32 {1, 0, 2, 1}");
  EXPECT_EQ(tensor_text(mask.kv_indices()),
            "[2, 2, 1, 3] i32 {0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 0, 2}");
  EXPECT_EQ(tensor_text(mask.full_kv_num_blocks()), "[2, 2, 1] i32 {0, 1, 0, 1}");
  EXPECT_EQ(tensor_text(mask.q_num_blocks()), "[2, 2, 3] i32 {1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0}");
  EXPECT_EQ(tensor_text(mask.full_q_num_blocks()),
            "[2, 2, 3] i32 {0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0}");
}

TEST(Adjust, KeepsTheFirstRowsAndColumns) {
  const BlockMask mask = per_head();
  for (const std::int64_t q_len : {0, 1, 4, 5, 7}) {
    for (const std::int64_t kv_len : {0, 2, 3, 6, 9}) {
      const BlockMask part = mask.adjust(q_len, kv_len);
      EXPECT_EQ(part.shape(), (Shape{2, 2, q_len, kv_len}));
      EXPECT_EQ(part.q_blocks(), (q_len + 3) / 4);
      EXPECT_EQ(part.kv_blocks(), (kv_len + 2) / 3);
      for (std::int64_t p = 0; p < 4; ++p)
        for (std::int64_t r = 0; r < part.q_blocks(); ++r)
          for (std::int64_t c = 0; c < part.kv_blocks(); ++c)
            EXPECT_EQ(part.kind(p / 2, p % 2, r, c), mask.kind(p / 2, p % 2, r, c));
      EXPECT_EQ(part.mask_mod().formula(), mask.mask_mod().formula());
    }
  }
}

// A window away from the diagonal: torch's lists would point outside the mask.
TEST(Adjust, FewerColumns) {
  const BlockMask mask = create_block_mask(MaskMod::parse("abs(q_idx - kv_idx) < 4"), 1, 1, 32, 32,
                                           {.block_size = 4, .separate_full_blocks = false});
  const BlockMask part = mask.adjust(32, 16);
  EXPECT_EQ(tensor_text(part.kv_num_blocks()), "[1, 1, 8] i32 {2, 3, 3, 2, 1, 0, 0, 0}");
  EXPECT_EQ(tensor_text(part.kv_indices()),
            "[1, 1, 8, 4] i32 {0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2, 0, 1, "
            "2, 3, 0, 1, 2, 3, 0, 1, 2, 3}");
}

TEST(Adjust, OfGivenLists) {
  const Tensor num = Tensor::from<std::int64_t>({2, 1, 3});
  const Tensor indices = Tensor::from<std::int64_t>({3, 1, -1, 9, 0, 0, 0, 0, 2, 0, 3, -5}, {3, 4});
  const Tensor full_num = Tensor::from<std::int64_t>({1, 1, 0});
  const Tensor full = Tensor::from<std::int64_t>({0, 7, 7, 7, 3, 7, 7, 7, 8, 8, 8, 8}, {3, 4});
  const BlockMask mask = BlockMask::from_kv_blocks(
      {num, indices}, {.full = BlockLists{full_num, full}, .block_size = 8});
  const BlockMask rows = mask.adjust(9, 32);
  EXPECT_EQ(rows.shape(), (Shape{9, 32}));
  EXPECT_EQ(tensor_text(rows.kv_num_blocks()), "[2] i64 {2, 1}");
  EXPECT_EQ(tensor_text(rows.kv_indices()), "[2, 4] i64 {3, 1, -1, 9, 0, 0, 0, 0}");
  EXPECT_EQ(tensor_text(rows.full_kv_num_blocks()), "[2] i64 {1, 1}");
  EXPECT_EQ(tensor_text(rows.full_kv_indices()), "[2, 4] i64 {0, 7, 7, 7, 3, 7, 7, 7}");
  EXPECT_EQ(tensor_text(rows.q_num_blocks()), "[4] i32 {1, 1, 0, 1}");
  const BlockMask columns = mask.adjust(24, 17);
  EXPECT_EQ(tensor_text(columns.kv_num_blocks()), "[3] i32 {1, 1, 2}");
  EXPECT_EQ(tensor_text(columns.kv_indices()), "[3, 3] i32 {1, 0, 2, 0, 1, 2, 0, 2, 1}");
  EXPECT_EQ(tensor_text(columns.full_kv_num_blocks()), "[3] i32 {1, 0, 0}");
}

TEST(Adjust, SharesBlocksThatDoNotChange) {
  const BlockMask mask = per_head();
  EXPECT_EQ(&mask.adjust(5, 8).block_rows(), &mask.block_rows());
}

// Room for more elements in the last blocks: what was never proved is asked of the rule, and what
// was empty stays so.
TEST(Adjust, LongerWithinTheLastBlock) {
  const BlockMask square =
      create_block_mask(MaskMod::parse("q_idx < 10"), 1, 1, 10, 16, {.block_size = 16});
  ASSERT_EQ(square.kind(0, 0, 0, 0), BlockKind::kFullToEdge);
  const BlockMask longer = square.adjust(16, 16);
  EXPECT_EQ(longer.kind(0, 0, 0, 0), BlockKind::kPartial);
  const Tensor visible = evaluate(longer.whole_mask_mod(), {1, 1, 16, 16});
  EXPECT_TRUE(visible.at<bool>({0, 0, 9, 15}));
  EXPECT_FALSE(visible.at<bool>({0, 0, 10, 0}));

  const BlockMask late =
      create_block_mask(MaskMod::parse("kv_idx >= 20"), 1, 1, 16, 20, {.block_size = 16});
  EXPECT_FALSE(
      evaluate(late.adjust(16, 32).whole_mask_mod(), {1, 1, 16, 32}).at<bool>({0, 0, 0, 25}));
}

TEST(Adjust, Refuses) {
  const BlockMask mask = per_head();
  expect_error(ErrorKind::value,
               "[BlockMask::adjust] q_len 9 and kv_len 9 need 3 x 3 blocks; the mask has 2 x 3",
               [&] { mask.adjust(9, 9); });
  expect_error(ErrorKind::value,
               "[BlockMask::adjust] q_len 8 and kv_len 10 need 2 x 4 blocks; the mask has 2 x 3",
               [&] { mask.adjust(8, 10); });
  expect_error(ErrorKind::value, "[BlockMask::adjust] q_len must be in 0..1099511627776; got -1",
               [&] { mask.adjust(-1, 9); });
  expect_error(ErrorKind::value, "[BlockMask::adjust] kv_len must be in 0..1099511627776; got -4",
               [&] { mask.adjust(1, -4); });
}

}  // namespace
}  // namespace quire
