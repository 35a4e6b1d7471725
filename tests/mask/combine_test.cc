// rows, append_rows and & | ~: broadcasting, what they refuse, what they must not look at.
#include <gtest/gtest.h>

#include "mask/block_prover.h"
#include "mask/prove_planes.h"
#include "quire/mods.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

const MaskMod kCausal = [](auto, auto, auto q, auto kv) { return q >= kv; };
const MaskMod kByHead = [](auto, auto h, auto q, auto kv) { return q - kv < 64 * (h + 1); };
const MaskMod kByBatch = [](auto b, auto, auto, auto kv) { return kv < 100 * (b + 1); };

TEST(BlockMaskCombine, BroadcastsBatchesAndHeads) {
  const BlockMask heads = create_block_mask(kByHead, 1, 3, 300, 300, {.block_size = 32});
  const BlockMask batches = create_block_mask(kByBatch, 2, 1, 300, 300, {.block_size = 32});
  const BlockMask both = heads & batches;
  EXPECT_EQ(both.shape(), (Shape{2, 3, 300, 300}));
  EXPECT_EQ(first_difference(both, evaluate(kByHead & kByBatch, {2, 3, 300, 300})), std::nullopt);
  EXPECT_EQ(first_difference(heads | batches, evaluate(kByHead | kByBatch, {2, 3, 300, 300})),
            std::nullopt);
}

TEST(BlockMaskCombine, RefusesOtherSizes) {
  const BlockMask a = create_block_mask(kCausal, 2, 1, 300, 300);
  const auto with = [&](const BlockMask& b) { return [&a, b] { (void)(a & b); }; };
  expect_error(ErrorKind::value,
               "[BlockMask] block sizes must be equal; got (128, 128) and (64, 128)",
               with(create_block_mask(kCausal, 2, 1, 300, 300, {.block_size = {64, 128}})));
  expect_error(ErrorKind::value,
               "[BlockMask] masks must be of the same queries and keys; got 300 x 300 from 0 and "
               "300 x 200 from 0",
               with(create_block_mask(kCausal, 2, 1, 300, 200)));
  expect_error(ErrorKind::value, "[BlockMask] batch sizes 2 and 3 do not fit together",
               with(create_block_mask(kCausal, 3, 1, 300, 300)));
}

TEST(BlockMaskCombine, OfNothing) {
  const BlockMask empty = create_block_mask(kCausal, 1, 1, 0, 7);
  EXPECT_EQ((empty & ~empty).q_blocks(), 0);
}

TEST(BlockMaskRows, OneRowForDecoding) {
  const BlockMask mask = create_block_mask(kCausal, 1, 1, 1 << 20, 1 << 20);
  const BlockMask row = mask.rows(1000000, 1000001);
  EXPECT_EQ(row.q_begin(), 1000000);
  EXPECT_EQ(row.seq_lengths().first, 1);
  // 1,000,001 keys are visible: 7,812 whole blocks and 65 keys.
  EXPECT_EQ(row.kind(0, 0, 0, 7811), BlockKind::kFullToEdge);
  EXPECT_EQ(row.kind(0, 0, 0, 7812), BlockKind::kPartial);
  EXPECT_EQ(row.kind(0, 0, 0, 7813), BlockKind::kEmpty);
}

TEST(BlockMaskRows, OfRowsOfRows) {
  const BlockMask mask = create_block_mask(kByHead & kCausal, 1, 2, 500, 500, {.block_size = 16});
  EXPECT_EQ(mask.rows(37, 400).rows(5, 90), mask.rows(42, 127));
}

TEST(BlockMaskRows, RefusesRowsOutside) {
  const BlockMask mask = create_block_mask(kCausal, 1, 1, 300, 300);
  expect_error(ErrorKind::index,
               "[BlockMask::rows] rows must satisfy 0 <= q_begin <= q_end <= 300; got 20 and 301",
               [&] { mask.rows(20, 301); });
  expect_error(ErrorKind::index,
               "[BlockMask::rows] rows must satisfy 0 <= q_begin <= q_end <= 300; got 20 and 19",
               [&] { mask.rows(20, 19); });
}

TEST(BlockMaskAppend, OneTokenAfterTheOther) {
  BlockMask mask = create_block_mask(kCausal & kByHead, 1, 2, 0, 0, {.block_size = 16});
  for (std::int64_t length = 1; length <= 100; ++length) {
    mask.append_rows(1, 1);
    ASSERT_EQ(mask, create_block_mask(kCausal & kByHead, 1, 2, length, length, {.block_size = 16}))
        << length;
  }
}

TEST(BlockMaskAppend, SeesNewContentsOfBuffers) {
  Tensor ids({64}, DType::i32);
  const Buffer doc(ids, {.name = "doc"});
  const MaskMod mod = [&](auto, auto, auto q, auto kv) { return (doc[q] == doc[kv]) & (q >= kv); };
  BlockMask mask = create_block_mask(mod, 1, 1, 32, 32, {.block_size = 8});
  for (std::int64_t i = 32; i < 64; ++i) ids.at<std::int32_t>({i}) = 1;
  mask.append_rows(32, 32);
  EXPECT_EQ(mask, create_block_mask(mod, 1, 1, 64, 64, {.block_size = 8}));
}

TEST(BlockMaskAppend, LeavesCopiesAlone) {
  BlockMask mask = create_block_mask(kCausal, 1, 1, 100, 100, {.block_size = 16});
  const BlockMask before = mask;
  mask.append_rows(5, 6);
  EXPECT_EQ(before, create_block_mask(kCausal, 1, 1, 100, 100, {.block_size = 16}));
  EXPECT_EQ(mask.shape(), (Shape{1, 1, 105, 106}));
}

TEST(BlockMaskAppend, RefusesNegativeSizes) {
  BlockMask mask = create_block_mask(kCausal, 1, 1, 100, 100);
  const BlockMask before = mask;
  expect_error(
      ErrorKind::value,
      "[BlockMask::append_rows] rows and columns to add must not be negative nor go beyond "
      "2^31; got 1 and -1",
      [&] { mask.append_rows(1, -1); });
  EXPECT_EQ(mask, before);
}

TEST(BlockMaskAppend, RefusesMoreBlocksThanARunCanCount) {
  BlockMask mask = create_block_mask(noop_mask(), 1, 1, 1, 1, {.block_size = 1});
  expect_error(ErrorKind::value,
               "[BlockMask::append_rows] the number of key blocks must be in 0..1073741823; got "
               "1073741824",
               [&] { mask.append_rows(0, (std::int64_t{1} << 30) - 1); });
  mask.append_rows(0, (std::int64_t{1} << 30) - 2);
  EXPECT_EQ(mask.runs(0, 0, 0)[0].end(), (std::int64_t{1} << 30) - 1);
}

TEST(ProofForAppend, ReadsBuffersOnlyWhereThatPays) {
  EXPECT_EQ(mask::proof_for_append(100000, 100000), mask::Proof::kShapes);
  EXPECT_EQ(mask::proof_for_append(512 * 100000, 100000), mask::Proof::kContents);
}

TEST(BandRows, EvensOutAndKeepsLeavesWhole) {
  EXPECT_EQ(mask::band_rows(8192, 1, 2, 1), 256);
  EXPECT_EQ(mask::band_rows(16, 1, 2, 1), 1);
  EXPECT_EQ(mask::band_rows(16, 64, 2, 1), 16);
  EXPECT_EQ(mask::band_rows(100, 1, 2, 4), 8);
}

}  // namespace
}  // namespace quire::testing
