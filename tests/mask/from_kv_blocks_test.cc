// from_kv_blocks: the lists come back as they were given, the blocks are those of the lists, and
// lists that make no sense are refused by name.
#include <gtest/gtest.h>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"
#include "tests/support/torch_block_mask.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::tensor_text;

// Out of order, with rubbish behind num_blocks.
struct Example {
  Tensor num = Tensor::from<std::int64_t>({2, 0, 3});
  Tensor indices = Tensor::from<std::int64_t>({3, 1, -1, 9, 0, 0, 0, 0, 2, 0, 3, -5}, {3, 4});
  Tensor full_num = Tensor::from<std::int64_t>({1, 1, 0});
  Tensor full_indices = Tensor::from<std::int64_t>({0, 7, 7, 7, 2, 7, 7, 7, 8, 8, 8, 8}, {3, 4});

  BlockLists lists() const { return {num, indices}; }
  BlockLists full() const { return {full_num, full_indices}; }
};

// Values printed by torch 2.13.
TEST(FromKvBlocks, TwoAxesAndFullBlocks) {
  const Example e;
  const BlockMask mask =
      BlockMask::from_kv_blocks(e.lists(), {.full = e.full(), .block_size = {2, 4}});
  EXPECT_EQ(mask.shape(), (Shape{6, 16}));
  EXPECT_EQ(mask.batch(), 1);
  EXPECT_EQ(mask.heads(), 1);
  EXPECT_EQ(mask.q_blocks(), 3);
  EXPECT_EQ(mask.kv_blocks(), 4);
  EXPECT_EQ(tensor_text(mask.kv_num_blocks()), "[3] i64 {2, 0, 3}");
  EXPECT_EQ(tensor_text(mask.kv_indices()), "[3, 4] i64 {3, 1, -1, 9, 0, 0, 0, 0, 2, 0, 3, -5}");
  EXPECT_EQ(tensor_text(mask.full_kv_num_blocks()), "[3] i64 {1, 1, 0}");
  EXPECT_EQ(tensor_text(mask.full_kv_indices()), "[3, 4] i64 {0, 7, 7, 7, 2, 7, 7, 7, 8, 8, 8, 8}");
  EXPECT_EQ(tensor_text(mask.q_num_blocks()), "[4] i32 {1, 1, 1, 2}");
  EXPECT_EQ(tensor_text(mask.q_indices()), "[4, 3] i32 {2, 0, 1, 0, 1, 2, 2, 0, 1, 0, 2, 1}");
  EXPECT_EQ(tensor_text(mask.full_q_num_blocks()), "[4] i32 {1, 0, 1, 0}");
  EXPECT_EQ(tensor_text(mask.full_q_indices()), "[4, 3] i32 {0, 1, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2}");
  EXPECT_EQ(tensor_text(mask.to_dense()), "[3, 4] i32 {1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1}");
  EXPECT_EQ(mask.kind(0, 0, 0, 0), BlockKind::kFull);
  EXPECT_EQ(mask.kind(0, 0, 0, 1), BlockKind::kPartial);
  EXPECT_EQ(mask.kind(0, 0, 0, 2), BlockKind::kEmpty);
  EXPECT_TRUE(mask.separate_full_blocks());
  EXPECT_EQ(mask.mask_mod().formula(), noop_mask().formula());
}

// Rows that begin and end where blocks do take their lists along.
TEST(FromKvBlocks, RowsKeepTheirLists) {
  const Example e;
  const BlockMask mask =
      BlockMask::from_kv_blocks(e.lists(), {.full = e.full(), .block_size = {2, 4}});
  const BlockMask rows = mask.rows(2, 6);
  EXPECT_EQ(rows.shape(), (Shape{4, 16}));
  EXPECT_EQ(tensor_text(rows.to_dense()), "[2, 4] i32 {0, 0, 1, 0, 1, 0, 1, 1}");
  for (std::int64_t kv_block = 0; kv_block < 4; ++kv_block)
    for (std::int64_t q_block = 0; q_block < 2; ++q_block)
      EXPECT_EQ(rows.kind(0, 0, q_block, kv_block), mask.kind(0, 0, q_block + 1, kv_block));
  EXPECT_GT(mask.nbytes(), rows.nbytes());  // the given lists are kept as they were
}

TEST(FromKvBlocks, RefusesBlocksOutsideTheMask) {
  const Example e;
  const BlockMask mask = BlockMask::from_kv_blocks(e.lists(), {.block_size = {2, 4}});
  expect_error(ErrorKind::index, "[BlockMask] batch 0 and head 1 are outside a mask of 1 x 1",
               [&] { mask.kind(0, 1, 0, 0); });
  expect_error(ErrorKind::index, "[BlockMask] query block 3 is outside a mask of 3",
               [&] { mask.runs(0, 0, 3); });
  expect_error(ErrorKind::index, "[BlockMask] key block -1 is outside a mask of 4",
               [&] { mask.kind(0, 0, 0, -1); });
}

TEST(FromKvBlocks, ThreeAxesWithoutFullBlocks) {
  const Example e;
  const Tensor num = e.num.to(DType::i32).reshape({1, 3});
  const Tensor indices = e.indices.to(DType::i32).reshape({1, 3, 4});
  const BlockMask mask = BlockMask::from_kv_blocks({num, indices}, {.block_size = {2, 4}});
  EXPECT_EQ(mask.shape(), (Shape{1, 6, 16}));
  EXPECT_EQ(tensor_text(mask.kv_num_blocks()), "[1, 3] i32 {2, 0, 3}");
  EXPECT_EQ(tensor_text(mask.q_num_blocks()), "[1, 4] i32 {1, 1, 1, 2}");
  EXPECT_EQ(tensor_text(mask.q_indices()), "[1, 4, 3] i32 {2, 0, 1, 0, 1, 2, 2, 0, 1, 0, 2, 1}");
  EXPECT_EQ(tensor_text(mask.full_kv_indices()), "none");
  EXPECT_EQ(tensor_text(mask.full_q_indices()), "none");
  EXPECT_FALSE(mask.separate_full_blocks());
}

// What create_block_mask lists, read back, is the same mask; views may have any strides.
TEST(FromKvBlocks, ReadsWhatAMaskLists) {
  const MaskMod mod = MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)");
  const BlockMask mask = create_block_mask(mod, 2, 3, 70, 90, {.block_size = {4, 8}});
  const auto permuted = [](const Tensor& tensor) {
    return contiguous(tensor.view().transpose(0, 2));
  };
  const Tensor num = permuted(mask.kv_num_blocks()), indices = permuted(mask.kv_indices());
  const Tensor full_num = permuted(*mask.full_kv_num_blocks());
  const Tensor full_indices = permuted(*mask.full_kv_indices());
  const auto back = [](const Tensor& tensor) { return tensor.view().transpose(0, 2); };
  const BlockMask again = BlockMask::from_kv_blocks(
      {back(num), back(indices)}, {.full = BlockLists{back(full_num), back(full_indices)},
                                   .block_size = {4, 8},
                                   .mask_mod = mod,
                                   .seq_lengths = std::pair{70, 90}});
  EXPECT_EQ(again.shape(), mask.shape());
  EXPECT_EQ(tensor_text(again.kv_indices()), tensor_text(mask.kv_indices()));
  EXPECT_EQ(tensor_text(again.q_indices()), tensor_text(mask.q_indices()));
  EXPECT_EQ(tensor_text(again.full_q_indices()), tensor_text(mask.full_q_indices()));
  EXPECT_EQ(tensor_text(again.to_dense()), tensor_text(mask.to_dense()));
  EXPECT_DOUBLE_EQ(again.sparsity(), mask.sparsity());
}

// The best 2 of 9 blocks, and 1 full one: with a kv_len the lists may be narrow.
TEST(FromKvBlocks, NarrowLists) {
  const Tensor num = Tensor::from<std::int32_t>({2, 1}, {1, 1, 2});
  const Tensor indices = Tensor::from<std::int32_t>({7, 2, 8, 99}, {1, 1, 2, 2});
  const Tensor full_num = Tensor::from<std::int32_t>({0, 1}, {1, 1, 2});
  const Tensor full_indices = Tensor::from<std::int32_t>({99, 0}, {1, 1, 2, 1});
  const BlockMask mask =
      BlockMask::from_kv_blocks({num, indices}, {.full = BlockLists{full_num, full_indices},
                                                 .block_size = 16,
                                                 .seq_lengths = std::pair{20, 130}});
  EXPECT_EQ(mask.shape(), (Shape{1, 1, 20, 130}));
  EXPECT_EQ(mask.kv_blocks(), 9);
  EXPECT_EQ(tensor_text(mask.kv_indices()), "[1, 1, 2, 2] i32 {7, 2, 8, 99}");
  EXPECT_EQ(tensor_text(mask.full_kv_indices()), "[1, 1, 2, 1] i32 {99, 0}");
  EXPECT_EQ(tensor_text(mask.q_num_blocks()), "[1, 1, 9] i32 {0, 0, 1, 0, 0, 0, 0, 1, 1}");
  EXPECT_EQ(tensor_text(mask.to_dense()),
            "[1, 1, 2, 9] i32 {0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}");
}

TEST(FromKvBlocks, CopiesTheLists) {
  Tensor num = Tensor::from<std::int32_t>({1}),
         indices = Tensor::from<std::int32_t>({0, 1}, {1, 2});
  const BlockMask mask = BlockMask::from_kv_blocks({num, indices});
  num.at<std::int32_t>({0}) = 2;
  indices.at<std::int32_t>({0, 0}) = 9;
  Tensor taken = mask.kv_indices();
  taken.at<std::int32_t>({0, 0}) = 8;
  EXPECT_EQ(tensor_text(mask.kv_num_blocks()), "[1] i32 {1}");
  EXPECT_EQ(tensor_text(mask.kv_indices()), "[1, 2] i32 {0, 1}");
}

TEST(FromKvBlocks, EqualPlanesAreStoredOnce) {
  const Tensor num = Tensor::from<std::int32_t>({1});
  const Tensor indices = Tensor::from<std::int32_t>({2, 0, 0}, {1, 3});
  const BlockMask mask = BlockMask::from_kv_blocks(
      {num.view().expand({4, 5, 1}), indices.view().expand({4, 5, 1, 3})});
  EXPECT_EQ(mask.shape(), (Shape{4, 5, 128, 384}));
  EXPECT_EQ(mask.block_rows().planes(), 1);
  EXPECT_EQ(mask.block_rows().stored_runs(), 1);
}

TEST(FromKvBlocks, NoRowsAndNoColumns) {
  const Tensor num({2, 0}, DType::i32), indices({2, 0, 3}, DType::i32);
  const BlockMask no_rows = BlockMask::from_kv_blocks({num, indices});
  EXPECT_EQ(no_rows.shape(), (Shape{2, 0, 384}));
  EXPECT_EQ(tensor_text(no_rows.q_num_blocks()), "[2, 3] i32 {0, 0, 0, 0, 0, 0}");
  const BlockMask no_columns =
      BlockMask::from_kv_blocks({Tensor({2}, DType::i32), Tensor({2, 0}, DType::i32)});
  EXPECT_EQ(no_columns.shape(), (Shape{256, 0}));
  EXPECT_EQ(tensor_text(no_columns.to_dense()), "[2, 0] i32 {}");
}

void expect_refused(ErrorKind kind, const std::string& text, const BlockLists& lists,
                    const FromKvBlocksOptions& options = {}) {
  expect_error(kind, "[from_kv_blocks] " + text,
               [&] { BlockMask::from_kv_blocks(lists, options); });
}

TEST(FromKvBlocks, RefusesTensorsThatDoNotFit) {
  const Example e;
  const Tensor floats({3, 4}, DType::f32);
  expect_refused(ErrorKind::type, "kv_indices must be i32 or i64; got f32", {e.num, floats});
  expect_refused(ErrorKind::type, "kv_num_blocks must be i32 or i64; got bool",
                 {Tensor({3}, DType::boolean), e.indices});
  expect_refused(ErrorKind::type, "full_kv_indices must be i32 or i64; got f32", e.lists(),
                 {.full = BlockLists{e.full_num, floats}});
  expect_refused(ErrorKind::value, "kv_indices must have 2 to 4 axes; got [3]", {e.num, e.num});
  expect_refused(ErrorKind::value, "kv_indices must have 2 to 4 axes; got [1, 1, 1, 3, 4]",
                 {e.num, e.indices.reshape({1, 1, 1, 3, 4})});
  expect_refused(ErrorKind::value,
                 "kv_num_blocks must have the shape of kv_indices without its last axis, [3]; got "
                 "[4]",
                 {Tensor({4}, DType::i64), e.indices});
  expect_refused(ErrorKind::value,
                 "full_kv_num_blocks must have the shape of full_kv_indices without its last axis, "
                 "[3]; got [1, 3]",
                 e.lists(), {.full = BlockLists{e.full_num.reshape({1, 3}), e.full_indices}});
  const BlockLists narrow{e.full_num, Tensor({3, 2}, DType::i64)};
  const BlockLists short_lists{Tensor({2}, DType::i64), Tensor({2, 4}, DType::i64)};
  const std::string shape =
      "full_kv_indices must have the shape of kv_indices, [3, 4] (but for the last axis if "
      "seq_lengths are given); got ";
  expect_refused(ErrorKind::value, shape + "[3, 2]", e.lists(), {.full = narrow});
  expect_refused(ErrorKind::value, shape + "[2, 4]", e.lists(),
                 {.full = short_lists, .seq_lengths = std::pair{384, 512}});
}

TEST(FromKvBlocks, RefusesSizes) {
  const Example e;
  expect_refused(ErrorKind::value, "block_size.q must be in 1..1099511627776; got 0", e.lists(),
                 {.block_size = {0, 8}});
  expect_refused(ErrorKind::value, "block_size.kv must be in 1..1099511627776; got -1", e.lists(),
                 {.block_size = {8, -1}});
  expect_refused(ErrorKind::value, "q_len must be in 0..1099511627776; got -1", e.lists(),
                 {.seq_lengths = std::pair{-1, 8}});
  expect_refused(ErrorKind::value, "kv_len must be in 0..1099511627776; got -8", e.lists(),
                 {.seq_lengths = std::pair{1, -8}});
  expect_refused(ErrorKind::value, "q_len must be in 0..1099511627776; got 3298534883328",
                 e.lists(), {.block_size = std::int64_t{1} << 40});
  expect_refused(ErrorKind::value,
                 "the number of key blocks must be in 0..1073741823; got 1073741824", e.lists(),
                 {.block_size = 1, .seq_lengths = std::pair{3, std::int64_t{1} << 30}});
}

TEST(FromKvBlocks, RefusesBlocks) {
  const auto lists = [](std::initializer_list<std::int32_t> num,
                        std::initializer_list<std::int32_t> indices) {
    return std::pair{Tensor::from(num, {1, 2, 2}), Tensor::from(indices, {1, 2, 2, 3})};
  };
  const auto [num, indices] = lists({1, 0, 2, 3}, {2, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 0});
  const BlockLists good{num, indices};
  const auto expect_bad = [&](ErrorKind kind, const std::string& text,
                              std::initializer_list<std::int32_t> bad_num,
                              std::initializer_list<std::int32_t> bad_indices) {
    const auto [n, i] = lists(bad_num, bad_indices);
    expect_refused(kind, text, {n, i});
  };
  expect_bad(ErrorKind::value, "kv_num_blocks of batch 0, head 1, row 0 must be in 0..3; got 4",
             {1, 0, 4, 0}, {2, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 0});
  expect_bad(ErrorKind::value, "kv_num_blocks of batch 0, head 0, row 1 must be in 0..3; got -1",
             {1, -1, 2, 0}, {2, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 0});
  expect_bad(ErrorKind::index, "kv_indices of batch 0, head 1, row 1 must be in 0..2; got 3",
             {1, 0, 2, 3}, {2, 0, 0, 0, 0, 0, 0, 2, 0, 2, 3, 0});
  expect_bad(ErrorKind::index, "kv_indices of batch 0, head 0, row 0 must be in 0..2; got -1",
             {1, 0, 2, 3}, {-1, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 0});
  expect_bad(ErrorKind::value, "block 2 of batch 0, head 1, row 1 is twice in kv_indices",
             {1, 0, 2, 3}, {2, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 2});

  const auto [no, none] = lists({0, 0, 0, 1}, {9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 9, 9});
  expect_refused(ErrorKind::value,
                 "block 1 of batch 0, head 1, row 1 is in kv_indices and in full_kv_indices", good,
                 {.full = BlockLists{no, none}});
  const auto [two, twice] = lists({2, 0, 0, 0}, {1, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9});
  expect_refused(ErrorKind::value, "block 1 of batch 0, head 0, row 0 is twice in full_kv_indices",
                 good, {.full = BlockLists{two, twice}});
  const auto [outside, out] = lists({1, 0, 0, 0}, {3, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9});
  expect_refused(ErrorKind::index,
                 "full_kv_indices of batch 0, head 0, row 0 must be in 0..2; got 3", good,
                 {.full = BlockLists{outside, out}});
}

}  // namespace
}  // namespace quire
