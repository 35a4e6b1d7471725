// Index tensors, entry for entry those of torch 2.13: values printed by torch itself, ranks, and
// planes that are stored once.
#include <gtest/gtest.h>

#include "quire/block_mask.h"
#include "quire/evaluate.h"
#include "tests/support/expect_error.h"
#include "tests/support/torch_block_mask.h"

namespace quire {
namespace {

using testing::difference;
using testing::tensor_text;
using testing::torch_block_mask;
using testing::TorchBlockMask;

Tensor ints(std::initializer_list<std::int32_t> values, const Shape& shape) {
  return Tensor::from(values, shape);
}

const MaskMod& window() {
  static const MaskMod mod = MaskMod::parse("(q_idx >= kv_idx) & (q_idx - kv_idx < 20)");
  return mod;
}

// Depends on batch and head.
const MaskMod& per_head() {
  static const MaskMod mod = MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)");
  return mod;
}

// create_block_mask(window, 1, 1, 30, 37, BLOCK_SIZE=(8, 6)) of torch 2.13.
TorchBlockMask window_of_torch() {
  TorchBlockMask torch;
  torch.kv_num_blocks = ints({2, 2, 3, 5}, {1, 1, 4});
  torch.kv_indices =
      ints({0, 1, 2, 3, 4, 5, 6, 1, 2, 0, 3, 4, 5, 6, 0, 2, 3, 1, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6},
           {1, 1, 4, 7});
  torch.full_kv_num_blocks = ints({0, 1, 1, 0}, {1, 1, 4});
  torch.full_kv_indices =
      ints({0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 1, 0, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6},
           {1, 1, 4, 7});
  torch.q_num_blocks = ints({3, 3, 3, 2, 1, 0, 0}, {1, 1, 7});
  torch.q_indices =
      ints({0, 2, 3, 1, 0, 1, 3, 2, 1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3},
           {1, 1, 7, 4});
  torch.full_q_num_blocks = ints({1, 1, 0, 0, 0, 0, 0}, {1, 1, 7});
  torch.full_q_indices =
      ints({1, 0, 2, 3, 2, 0, 1, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
           {1, 1, 7, 4});
  torch.dense =
      ints({1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0},
           {1, 1, 4, 7});
  return torch;
}

// The same with separate_full_blocks=False.
TorchBlockMask joined_window_of_torch() {
  TorchBlockMask torch;
  torch.kv_num_blocks = ints({2, 3, 4, 5}, {1, 1, 4});
  torch.kv_indices =
      ints({0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6},
           {1, 1, 4, 7});
  torch.q_num_blocks = ints({4, 4, 3, 2, 1, 0, 0}, {1, 1, 7});
  torch.q_indices =
      ints({0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3},
           {1, 1, 7, 4});
  torch.dense = window_of_torch().dense;
  return torch;
}

// create_block_mask(per_head, 2, 2, 7, 9, BLOCK_SIZE=(4, 3)).
TorchBlockMask per_head_of_torch() {
  TorchBlockMask torch;
  torch.kv_num_blocks = ints({1, 2, 0, 2, 2, 2, 1, 3}, {2, 2, 2});
  torch.kv_indices =
      ints({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2}, {2, 2, 2, 3});
  torch.full_kv_num_blocks = ints({0, 0, 1, 0, 0, 0, 1, 0}, {2, 2, 2});
  torch.full_kv_indices =
      ints({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}, {2, 2, 2, 3});
  torch.q_num_blocks = ints({2, 1, 0, 1, 1, 0, 2, 2, 0, 1, 2, 1}, {2, 2, 3});
  torch.q_indices =
      ints({0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0}, {2, 2, 3, 2});
  torch.full_q_num_blocks = ints({0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0}, {2, 2, 3});
  torch.full_q_indices =
      ints({0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, {2, 2, 3, 2});
  torch.dense =
      ints({1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1}, {2, 2, 2, 3});
  return torch;
}

TEST(IndexTensors, ValuesOfTorch) {
  EXPECT_EQ(difference(create_block_mask(window(), 1, 1, 30, 37, {.block_size = {8, 6}}),
                       window_of_torch()),
            "");
  EXPECT_EQ(difference(create_block_mask(window(), 1, 1, 30, 37,
                                         {.block_size = {8, 6}, .separate_full_blocks = false}),
                       joined_window_of_torch()),
            "");
  EXPECT_EQ(difference(create_block_mask(per_head(), 2, 2, 7, 9, {.block_size = {4, 3}}),
                       per_head_of_torch()),
            "");
}

// The helper of the property tests, against the same values.
TEST(IndexTensors, TheHelperGivesTheValuesOfTorch) {
  const auto expect_same = [](const TorchBlockMask& a, const TorchBlockMask& b) {
    EXPECT_EQ(tensor_text(a.kv_num_blocks), tensor_text(b.kv_num_blocks));
    EXPECT_EQ(tensor_text(a.kv_indices), tensor_text(b.kv_indices));
    EXPECT_EQ(tensor_text(a.full_kv_num_blocks), tensor_text(b.full_kv_num_blocks));
    EXPECT_EQ(tensor_text(a.full_kv_indices), tensor_text(b.full_kv_indices));
    EXPECT_EQ(tensor_text(a.q_num_blocks), tensor_text(b.q_num_blocks));
    EXPECT_EQ(tensor_text(a.q_indices), tensor_text(b.q_indices));
    EXPECT_EQ(tensor_text(a.full_q_num_blocks), tensor_text(b.full_q_num_blocks));
    EXPECT_EQ(tensor_text(a.full_q_indices), tensor_text(b.full_q_indices));
    EXPECT_EQ(tensor_text(a.dense), tensor_text(b.dense));
  };
  const Tensor dense = evaluate(window(), {1, 1, 30, 37});
  expect_same(torch_block_mask(dense, {8, 6}), window_of_torch());
  expect_same(torch_block_mask(dense, {8, 6}, false), joined_window_of_torch());
  expect_same(torch_block_mask(evaluate(per_head(), {2, 2, 7, 9}), {4, 3}), per_head_of_torch());
}

TEST(IndexTensors, PlanesStoredOnceAreWrittenToAllPlaces) {
  for (const char* text : {"q_idx >= kv_idx", "q_idx >= kv_idx + b", "q_idx >= kv_idx + h",
                           "q_idx >= kv_idx + 16 * (b // 2)"}) {
    SCOPED_TRACE(text);
    const MaskMod mod = MaskMod::parse(text);
    const BlockMask mask = create_block_mask(mod, 4, 3, 100, 90, {.block_size = 16});
    EXPECT_EQ(difference(mask, torch_block_mask(evaluate(mod, {4, 3, 100, 90}), 16)), "");
  }
}

// More rows than one task takes, rows that equal the one before, and wide ones.
TEST(IndexTensors, ManyRows) {
  const MaskMod mod = MaskMod::parse("q_idx // 3 >= kv_idx");
  const BlockMask mask = create_block_mask(mod, 2, 1, 1000, 700, {.block_size = 1});
  EXPECT_EQ(difference(mask, torch_block_mask(evaluate(mod, {2, 1, 1000, 700}), 1)), "");
}

TEST(IndexTensors, EmptyMasks) {
  for (const Shape& shape : {Shape{1, 1, 0, 40}, Shape{1, 1, 40, 0}, Shape{0, 2, 40, 40},
                             Shape{2, 0, 40, 40}, Shape{1, 2, 0, 0}}) {
    SCOPED_TRACE(to_string(shape));
    const BlockMask mask =
        create_block_mask(window(), shape[0], shape[1], shape[2], shape[3], {.block_size = 16});
    EXPECT_EQ(difference(mask, torch_block_mask(Tensor(shape, DType::boolean), 16)), "");
  }
}

TEST(IndexTensors, WithoutQBlocks) {
  const Tensor num = ints({1}, {1}), indices = ints({0}, {1, 1});
  const BlockMask mask = BlockMask::from_kv_blocks(
      {num, indices},
      {.full = BlockLists{Tensor({1}, DType::i32), indices}, .compute_q_blocks = false});
  EXPECT_TRUE(mask.full_kv_indices().has_value());
  EXPECT_FALSE(mask.q_num_blocks().has_value());
  EXPECT_FALSE(mask.q_indices().has_value());
  EXPECT_FALSE(mask.full_q_num_blocks().has_value());
  EXPECT_FALSE(mask.full_q_indices().has_value());
}

// 2**16 batches of 2**16 x 2**16 blocks: refused, not tried.
TEST(IndexTensors, RefusesWhatDoesNotFit) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx >= kv_idx"), 65536, 1, 1 << 23, 1 << 23);
  const auto expect_refused = [](const std::string& text, FunctionRef<void()> call) {
    try {
      call();
      ADD_FAILURE() << "no error; expected: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::runtime);
      EXPECT_EQ(std::string(error.what()).substr(0, text.size()), text);
    }
  };
  expect_refused("[BlockMask] kv_indices needs 1.1 PB, and ", [&] { mask.kv_indices(); });
  expect_refused("[BlockMask] full_kv_indices needs 1.1 PB, and ", [&] { mask.full_kv_indices(); });
  expect_refused("[BlockMask] q_indices needs 1.1 PB, and ", [&] { mask.q_indices(); });
  expect_refused("[BlockMask] full_q_indices needs 1.1 PB, and ", [&] { mask.full_q_indices(); });
  expect_refused("[BlockMask] to_dense needs 1.1 PB, and ", [&] { mask.to_dense(); });
}

}  // namespace
}  // namespace quire
