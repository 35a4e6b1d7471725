// BlockMask::index: values of torch, Python's rules for slices, what is kept and what is not.
#include <gtest/gtest.h>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "tests/support/expect_error.h"
#include "tests/support/torch_block_mask.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::tensor_text;
using List = std::vector<std::int64_t>;

BlockMask per_head(std::int64_t batch = 2, std::int64_t heads = 2, std::int64_t q_len = 7) {
  return create_block_mask(MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)"), batch,
                           heads, q_len, 9, {.block_size = {4, 3}});
}

// mask[1] of torch 2.13.
TEST(Index, ValuesOfTorch) {
  const BlockMask mask = per_head().index(1);
  EXPECT_EQ(mask.shape(), (Shape{1, 2, 7, 9}));
  EXPECT_EQ(tensor_text(mask.kv_num_blocks()), "[1, 2, 2] i32 {2, 2, 1, 3}");
  EXPECT_EQ(tensor_text(mask.kv_indices()),
            "[1, 2, 2, 3] i32 {0, 1, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2}");
  EXPECT_EQ(tensor_text(mask.full_kv_num_blocks()), "[1, 2, 2] i32 {0, 0, 1, 0}");
  EXPECT_EQ(tensor_text(mask.q_num_blocks()), "[1, 2, 3] i32 {2, 2, 0, 1, 2, 1}");
  EXPECT_EQ(tensor_text(mask.q_indices()), "[1, 2, 3, 2] i32 {0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0}");
  EXPECT_EQ(tensor_text(mask.full_q_num_blocks()), "[1, 2, 3] i32 {0, 0, 0, 1, 0, 0}");
}

// mask[-1, 0:5, 0:-1].
TEST(Index, SlicesOfAllAxes) {
  const BlockMask mask = per_head().index(-1, BlockSlice{0, 5}, BlockSlice{0, -1});
  EXPECT_EQ(mask.shape(), (Shape{1, 2, 7, 9}));
  EXPECT_EQ(mask.q_blocks(), 1);
  EXPECT_EQ(tensor_text(mask.kv_num_blocks()), "[1, 2, 1] i32 {2, 1}");
  EXPECT_EQ(tensor_text(mask.kv_indices()), "[1, 2, 1, 3] i32 {0, 1, 2, 1, 0, 2}");
  EXPECT_EQ(tensor_text(mask.full_kv_num_blocks()), "[1, 2, 1] i32 {0, 1}");
  EXPECT_EQ(tensor_text(mask.q_num_blocks()), "[1, 2, 3] i32 {1, 1, 0, 0, 1, 0}");
  EXPECT_EQ(tensor_text(mask.q_indices()), "[1, 2, 3, 1] i32 {0, 0, 0, 0, 0, 0}");
  EXPECT_EQ(tensor_text(mask.full_q_num_blocks()), "[1, 2, 3] i32 {0, 0, 0, 1, 0, 0}");
}

// The given lists, order and rubbish included: mask[0, 0, torch.tensor([2, 0])].
TEST(Index, OfGivenLists) {
  const Tensor num = Tensor::from<std::int64_t>({2, 0, 3});
  const Tensor indices = Tensor::from<std::int64_t>({3, 1, -1, 9, 0, 0, 0, 0, 2, 0, 3, -5}, {3, 4});
  const Tensor full_num = Tensor::from<std::int64_t>({1, 1, 0});
  const Tensor full = Tensor::from<std::int64_t>({0, 7, 7, 7, 2, 7, 7, 7, 8, 8, 8, 8}, {3, 4});
  const BlockMask mask = BlockMask::from_kv_blocks(
      {num, indices}, {.full = BlockLists{full_num, full}, .block_size = {2, 4}});
  const BlockMask part = mask.index(0, 0, List{2, 0});
  EXPECT_EQ(part.shape(), (Shape{1, 1, 6, 16}));
  EXPECT_EQ(tensor_text(part.kv_num_blocks()), "[1, 1, 2] i64 {3, 2}");
  EXPECT_EQ(tensor_text(part.kv_indices()), "[1, 1, 2, 4] i64 {2, 0, 3, -5, 3, 1, -1, 9}");
  EXPECT_EQ(tensor_text(part.full_kv_num_blocks()), "[1, 1, 2] i64 {0, 1}");
  EXPECT_EQ(tensor_text(part.full_kv_indices()), "[1, 1, 2, 4] i64 {8, 8, 8, 8, 0, 7, 7, 7}");
  EXPECT_EQ(tensor_text(part.q_num_blocks()), "[1, 1, 4] i32 {1, 1, 1, 2}");
  EXPECT_EQ(tensor_text(part.q_indices()), "[1, 1, 4, 2] i32 {0, 1, 1, 0, 0, 1, 0, 1}");
  EXPECT_EQ(tensor_text(part.full_q_indices()), "[1, 1, 4, 2] i32 {1, 0, 0, 1, 0, 1, 0, 1}");
}

// Any choice of positions is the rows at these positions.
void expect_rows(const BlockMask& part, const BlockMask& whole, const List& b, const List& h,
                 const List& rows) {
  ASSERT_EQ(part.batch(), static_cast<std::int64_t>(b.size()));
  ASSERT_EQ(part.heads(), static_cast<std::int64_t>(h.size()));
  ASSERT_EQ(part.q_blocks(), static_cast<std::int64_t>(rows.size()));
  for (std::size_t i = 0; i < b.size(); ++i) {
    for (std::size_t j = 0; j < h.size(); ++j) {
      for (std::size_t k = 0; k < rows.size(); ++k) {
        for (std::int64_t c = 0; c < whole.kv_blocks(); ++c) {
          const auto at = [](std::size_t x) { return static_cast<std::int64_t>(x); };
          const BlockKind was = whole.kind(b[i], h[j], rows[k], c);
          EXPECT_EQ(part.kind(at(i), at(j), at(k), c) == BlockKind::kFull, was == BlockKind::kFull);
          EXPECT_EQ(part.kind(at(i), at(j), at(k), c) == BlockKind::kEmpty,
                    was == BlockKind::kEmpty);
        }
      }
    }
  }
}

TEST(Index, PythonSlices) {
  const BlockMask mask = per_head(5, 4, 20);
  using Slice = BlockSlice;
  const struct {
    Slice slice;
    List positions;
  } cases[] = {
      {{}, {0, 1, 2, 3, 4}},
      {{1}, {1, 2, 3, 4}},
      {{{}, 2}, {0, 1}},
      {{-2}, {3, 4}},
      {{{}, -2}, {0, 1, 2}},
      {{-100, 100}, {0, 1, 2, 3, 4}},
      {{3, 2}, {}},
      {{7, 9}, {}},
      {{{}, {}, 2}, {0, 2, 4}},
      {{1, -1, 2}, {1, 3}},
      {{1, {}, INT64_MAX}, {1}},
      {{INT64_MIN, INT64_MAX, 3}, {0, 3}},
      {{-1, -1}, {}},
      {{{}, {}, 5}, {0}},
  };
  for (const auto& c : cases) {
    expect_rows(mask.index(c.slice), mask, c.positions, {0, 1, 2, 3}, {0, 1, 2, 3, 4});
    expect_rows(mask.index(Slice(), Slice(), c.slice), mask, {0, 1, 2, 3, 4}, {0, 1, 2, 3},
                c.positions);
  }
}

TEST(Index, ListsAreTakenAxisByAxis) {
  const BlockMask mask = per_head(3, 4, 20);
  expect_rows(mask.index(List{2, -3, 2}, List{3, 0}, List{4, 0, 0, -2}), mask, {2, 0, 2}, {3, 0},
              {4, 0, 0, 3});
  expect_rows(mask.index(BlockSlice(), List{}), mask, {0, 1, 2}, {}, {0, 1, 2, 3, 4});
}

TEST(Index, SharesWhatIsStoredOnce) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx >= kv_idx"), 8, 4, 100, 100, {.block_size = 16});
  EXPECT_EQ(&mask.index(List{3, 3, 1}, 2).block_rows(), &mask.block_rows());
  const BlockMask rows = mask.index(1, BlockSlice(), BlockSlice{2, 4});
  EXPECT_EQ(rows.block_rows().heads(), 1);
  EXPECT_EQ(rows.block_rows().stored_rows(), 2);
  EXPECT_EQ(rows.batch(), 1);
  EXPECT_EQ(rows.heads(), 4);
}

TEST(Index, KeepsOptionsAndTakesTheRule) {
  const Tensor num = Tensor::from<std::int32_t>({1}),
               indices = Tensor::from<std::int32_t>({0}, {1, 1});
  const BlockMask mask =
      BlockMask::from_kv_blocks({num, indices}, {.compute_q_blocks = false}).index(0);
  EXPECT_FALSE(mask.q_indices().has_value());
  EXPECT_FALSE(mask.separate_full_blocks());
  EXPECT_FALSE(mask.has_mask_mod());
  const BlockMask joined = create_block_mask(MaskMod::parse("q_idx >= kv_idx"), 1, 1, 64, 64,
                                             {.block_size = 16, .separate_full_blocks = false})
                               .index(0, 0, 3);
  EXPECT_FALSE(joined.separate_full_blocks());
  EXPECT_EQ(tensor_text(joined.kv_num_blocks()), "[1, 1, 1] i32 {4}");
}

// The last row, cut off and otherwise full, as the first row is an ordinary one.
TEST(Index, RowsInAnotherPlaceAreNotCutOff) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("kv_idx >= 0"), 1, 1, 20, 32, {.block_size = 16});
  ASSERT_EQ(mask.kind(0, 0, 1, 0), BlockKind::kFullToEdge);
  EXPECT_EQ(mask.index(0, 0, 1).kind(0, 0, 0, 0), BlockKind::kPartial);
}

TEST(Index, Refuses) {
  const BlockMask mask = per_head();
  expect_error(ErrorKind::index, "[BlockMask::index] batch 2 is outside an axis of 2",
               [&] { mask.index(2); });
  expect_error(ErrorKind::index, "[BlockMask::index] head -3 is outside an axis of 2",
               [&] { mask.index(0, -3); });
  expect_error(ErrorKind::index, "[BlockMask::index] query block 5 is outside an axis of 2", [&] {
    mask.index(0, 0, List{0, 5});
  });
  expect_error(ErrorKind::value,
               "[BlockMask::index] the step of a slice must be at least 1; got 0 for head", [&] {
                 mask.index(0, BlockSlice{{}, {}, 0});
               });
}

}  // namespace
}  // namespace quire
