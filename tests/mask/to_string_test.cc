// to_string and operator<<: character for character what torch 2.13 prints for the same masks.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "quire/block_mask.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

std::string printed(const BlockMask& mask) {
  std::ostringstream out;
  out << mask;
  return out.str();
}

BlockMask per_head() {
  return create_block_mask(MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)"), 2, 2, 7, 9,
                           {.block_size = {4, 3}});
}

BlockMask causal(std::int64_t heads, std::int64_t q_len, std::int64_t kv_len, BlockSize size) {
  return create_block_mask(MaskMod::parse("q_idx >= kv_idx"), 1, heads, q_len, kv_len,
                           {.block_size = size});
}

constexpr const char* kMore =
    "...\n"
    "To print out more, set BlockMask.to_string(limit=N)\n"
    "You can also index (BlockMask[batch, head]) to choose a specific batch or head";

TEST(ToString, EveryBlock) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("(q_idx >= kv_idx) & (q_idx - kv_idx < 20)"), 1, 1, 30, 37,
                        {.block_size = {8, 6}});
  EXPECT_EQ(mask.to_string(),
            "(0, 0)\n"
            "████          \n"
            "██████        \n"
            "████████      \n"
            "██████████    \n");
  // The blanks at the very end are cut away.
  EXPECT_EQ(printed(mask),
            "BlockMask(shape=(1, 1, 30, 37), sparsity=39.46%, \n"
            "(0, 0)\n"
            "████          \n"
            "██████        \n"
            "████████      \n"
            "██████████\n"
            ")");
}

TEST(ToString, EveryPlane) {
  const std::string first =
      "(0, 0)\n"
      "██    \n"
      "████  \n"
      "\n";
  const std::string second =
      "(0, 1)\n"
      "██    \n"
      "████  \n"
      "\n";
  const std::string all = first + second +
                          "(1, 0)\n"
                          "████  \n"
                          "████  \n"
                          "\n"
                          "(1, 1)\n"
                          "████  \n"
                          "██████\n";
  const BlockMask mask = per_head();
  EXPECT_EQ(mask.to_string(), all);
  EXPECT_EQ(mask.to_string({20, 20}, -1), all);
  EXPECT_EQ(mask.to_string({20, 20}, 2), first + second + kMore);
  EXPECT_EQ(mask.to_string({-1, -1}, 1), first + kMore);
  EXPECT_EQ(mask.to_string({20, 20}, 0), kMore);
  EXPECT_EQ(printed(mask), "BlockMask(shape=(2, 2, 7, 9), sparsity=28.57%, \n" + all + ")");
}

TEST(ToString, FewerBatchAxes) {
  const Tensor num = Tensor::from<std::int32_t>({2, 0, 3});
  const Tensor indices = Tensor::from<std::int32_t>({3, 1, -1, 9, 0, 0, 0, 0, 2, 0, 3, -5}, {3, 4});
  EXPECT_EQ(printed(BlockMask::from_kv_blocks({num.reshape({1, 3}), indices.reshape({1, 3, 4})},
                                              {.block_size = {2, 4}})),
            "BlockMask(shape=(1, 6, 16), sparsity=58.33%, \n"
            "(0,)\n"
            "  ██  ██\n"
            "        \n"
            "██  ████\n"
            ")");
  EXPECT_EQ(printed(BlockMask::from_kv_blocks({num, indices}, {.block_size = {2, 4}})),
            "BlockMask(shape=(6, 16), sparsity=58.33%, \n"
            "()\n"
            "  ██  ██\n"
            "        \n"
            "██  ████\n"
            ")");
}

// 50 x 70 blocks in a grid of 20 x 20: 3 x 4 blocks per cell, the last ones narrower.
TEST(ToString, CellsOfSeveralBlocks) {
  const std::string picture =
      "░░                                  \n"
      "██░░                                \n"
      "██░░░░                              \n"
      "████░░                              \n"
      "██████░░                            \n"
      "████████░░                          \n"
      "████████░░░░                        \n"
      "██████████░░                        \n"
      "████████████░░                      \n"
      "██████████████░░                    \n"
      "██████████████░░░░                  \n"
      "████████████████░░                  \n"
      "██████████████████░░                \n"
      "████████████████████░░              \n"
      "████████████████████░░░░            \n"
      "██████████████████████░░            \n"
      "████████████████████████░░";
  const BlockMask mask = causal(2, 50, 70, 1);
  EXPECT_EQ(printed(mask), "BlockMask(shape=(1, 2, 50, 70), sparsity=63.57%, \n(0, 0)\n" + picture +
                               "          \n\n(0, 1)\n" + picture + "\n)");
  EXPECT_EQ(mask.to_string({5, 7}, 1),
            "(0, 0)\n"
            "░░            \n"
            "██░░          \n"
            "████░░        \n"
            "██████░░      \n"
            "████████░░    \n"
            "\n" +
                std::string(kMore));
}

TEST(ToString, EveryRowOfBlocksInTenColumns) {
  const std::string picture = causal(1, 50, 70, 1).to_string({-1, 10});
  EXPECT_EQ(picture.substr(0, picture.find("██░░")),
            "(0, 0)\n"
            "░░                  \n"
            "░░                  \n"
            "░░                  \n"
            "░░                  \n"
            "░░                  \n"
            "░░                  \n"
            "██                  \n");
  EXPECT_EQ(std::ranges::count(picture, '\n'), 51);
}

TEST(ToString, NothingVisible) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx < kv_idx - 3"), 1, 1, 5, 4, {.block_size = 2});
  EXPECT_EQ(mask.to_string(), "(0, 0)\n    \n    \n    \n");
  EXPECT_EQ(printed(mask), "BlockMask(shape=(1, 1, 5, 4), sparsity=100.00%, \n(0, 0)\n)");
}

// A picture of 2**16 x 2**16 blocks is counted from runs.
TEST(ToString, LargeMasks) {
  EXPECT_EQ(causal(1, 1 << 23, 1 << 23, 128).to_string({2, 3}),
            "(0, 0)\n"
            "░░░░  \n"
            "██░░░░\n");
}

// torch divides by zero here.
TEST(ToString, EmptyMasks) {
  EXPECT_EQ(causal(2, 0, 40, 16).to_string(), "(0, 0)\n\n(0, 1)\n");
  EXPECT_EQ(causal(1, 20, 0, 16).to_string(), "(0, 0)\n\n\n");
  EXPECT_EQ(causal(0, 20, 20, 16).to_string(), "");
  EXPECT_EQ(printed(causal(0, 20, 20, 16)), "BlockMask(shape=(1, 0, 20, 20), sparsity=nan%, \n\n)");
}

TEST(ToString, Refuses) {
  const BlockMask mask = per_head();
  for (const std::array<std::int64_t, 2> grid : {std::array<std::int64_t, 2>{0, 20}, {20, 0}})
    testing::expect_error(ErrorKind::value,
                          "[BlockMask::to_string] grid_size must not be 0; -1 draws every block",
                          [&] { mask.to_string(grid); });
}

}  // namespace
}  // namespace quire
