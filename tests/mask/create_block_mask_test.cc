// create_block_mask: sizes, sharing of planes and rows, proofs that need no evaluation, faults,
// limits, errors.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mask/block_rows.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

const MaskMod kCausal = [](auto, auto, auto q, auto kv) { return q >= kv; };

TEST(CreateBlockMask, CausalRowsAreARunAndADiagonalBlock) {
  const BlockMask mask = create_block_mask(kCausal, 1, 1, 512, 512);
  EXPECT_EQ(mask.q_blocks(), 4);
  for (std::int64_t row = 0; row < 4; ++row) {
    const auto runs = mask.runs(0, 0, row);
    ASSERT_EQ(runs.size(), row == 0 ? 1u : 2u);
    EXPECT_EQ(runs.back().kind, BlockKind::kPartial);
    EXPECT_EQ(runs.back().begin, row);
    if (row > 0) {
      EXPECT_EQ(runs[0].kind, BlockKind::kFull);
      EXPECT_EQ(runs[0].end(), row);
    }
  }
}

TEST(CreateBlockMask, BlocksCutOffAreFullToTheEdge) {
  const MaskMod all = [](auto, auto, auto q, auto) { return q >= 0; };
  const BlockMask mask = create_block_mask(all, 1, 1, 200, 130);
  EXPECT_EQ(mask.kind(0, 0, 0, 0), BlockKind::kFull);
  EXPECT_EQ(mask.kind(0, 0, 0, 1), BlockKind::kFullToEdge);
  EXPECT_EQ(mask.kind(0, 0, 1, 0), BlockKind::kFullToEdge);
  EXPECT_EQ(mask.kind(0, 0, 1, 1), BlockKind::kFullToEdge);
}

TEST(CreateBlockMask, LongRandomRulesEqualTheDenseMask) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 40; ++i) {
    const RandomMask made = random_mask(random, 1000);
    EXPECT_EQ(first_difference(made.build(), made.dense()), std::nullopt) << made.mod.to_string();
  }
}

TEST(CreateBlockMask, StoresWhatIsEqualOnce) {
  const BlockMask one = create_block_mask(kCausal, 1, 1, 4096, 4096);
  const BlockMask many = create_block_mask(kCausal, 1 << 20, 1 << 10, 4096, 4096);
  EXPECT_EQ(many.nbytes(), one.nbytes());
  EXPECT_EQ(many.runs(1 << 19, 1000, 7).data(), many.runs(0, 0, 7).data());
  // Depends on h by what is written, but has two different planes only; and equal rows.
  const MaskMod halves = [](auto, auto h, auto q, auto kv) { return (h < 4) | (kv * 0 + q < 0); };
  const BlockMask mask = create_block_mask(halves, 5, 8, 4096, 4096);
  EXPECT_EQ(mask.block_rows().batches(), 1);
  EXPECT_EQ(mask.block_rows().heads(), 8);
  EXPECT_EQ(mask.block_rows().planes(), 2);
  EXPECT_EQ(mask.plane(4, 3), mask.plane(0, 0));
  EXPECT_NE(mask.plane(4, 4), mask.plane(0, 0));
  EXPECT_EQ(mask.block_rows().stored_rows(), 2);
}

TEST(CreateBlockMask, AMillionTokensAreProvedWithoutLooking) {
  constexpr std::int64_t kTokens = 1 << 20;
  BlockMaskReport report;
  const BlockMask mask = create_block_mask(kCausal, 1, 1, kTokens, kTokens, {.report = &report});
  EXPECT_LT(mask.nbytes(), 5u << 20);
  EXPECT_EQ(report.area, kTokens * kTokens);
  EXPECT_EQ(report.planes, 1);
  EXPECT_LT(report.evaluated, 4 * 8192 + 1);  // corners of the blocks on the diagonal
  EXPECT_LT(report.rectangles, 8 * 8192);
  EXPECT_EQ(mask.kind(0, 0, 8191, 8191), BlockKind::kPartial);
  EXPECT_EQ(mask.kind(0, 0, 8191, 8190), BlockKind::kFull);
}

TEST(CreateBlockMask, StepsOfTheProofCoverThePlaneOnce) {
  constexpr std::int64_t kQueries = 300, kKeys = 520;
  SerialExecutor serial;
  BlockMaskReport report{.most_steps = 100'000};
  create_block_mask(kCausal, 1, 1, kQueries, kKeys,
                    {.block_size = 32, .q_begin = 100, .executor = &serial, .report = &report});
  EXPECT_EQ(static_cast<std::int64_t>(report.steps.size()), report.rectangles);
  std::int64_t decided = 0;
  for (const ProofStep& step : report.steps) {
    EXPECT_LT(step.q_begin, step.q_end);
    EXPECT_LE(step.q_end, kQueries);
    EXPECT_LE(step.kv_end, kKeys);
    if (step.outcome == ProofStep::Outcome::kFull) {
      EXPECT_GE(step.q_begin + 100, step.kv_end - 1);
    }
    if (step.outcome == ProofStep::Outcome::kEmpty) {
      EXPECT_LT(step.q_end - 1 + 100, step.kv_begin);
    }
    if (step.outcome != ProofStep::Outcome::kSplit)
      decided += (step.q_end - step.q_begin) * (step.kv_end - step.kv_begin);
  }
  EXPECT_EQ(decided, kQueries * kKeys);
  const std::size_t all = report.steps.size();
  report.most_steps = 5;
  create_block_mask(kCausal, 1, 1, kQueries, kKeys,
                    {.block_size = 32, .executor = &serial, .report = &report});
  EXPECT_EQ(report.steps.size(), 5u);
  EXPECT_GT(all, 5u);
}

TEST(CreateBlockMask, EmptySizes) {
  for (const std::int64_t q_len : {0, 5}) {
    for (const std::int64_t kv_len : {0, 5}) {
      for (const std::int64_t batch : {0, 2}) {
        const BlockMask mask = create_block_mask(kCausal, batch, 2, q_len, kv_len);
        EXPECT_EQ(mask.q_blocks(), q_len > 0 ? 1 : 0);
        EXPECT_EQ(mask.kv_blocks(), kv_len > 0 ? 1 : 0);
        EXPECT_EQ(mask.numel(), batch * 2 * q_len * kv_len);
        if (batch > 0 && q_len > 0) {
          EXPECT_EQ(mask.runs(1, 1, 0).size(), kv_len > 0 ? 1u : 0u);
        }
      }
    }
  }
}

TEST(CreateBlockMask, FirstFaultOfAVisibleElementIsThrown) {
  const Buffer limit(std::vector<std::int64_t>(300, 5), {.name = "limit"});
  // Reads outside for q_idx >= 300; visible there only from key 200 on.
  const MaskMod mod = [&](auto, auto, auto q, auto kv) {
    return (limit[q] > 0) & ((q < 300) | (kv >= 200));
  };
  for (const std::int64_t block : {128, 16, 1}) {
    expect_error(ErrorKind::index,
                 "[formula] index 300 is outside buffer 'limit' of size 300 (axis 0) at b=0, h=0, "
                 "q_idx=300, kv_idx=200",
                 [&] { create_block_mask(mod, 2, 2, 500, 500, {.block_size = block}); });
    EXPECT_NO_THROW(create_block_mask(mod, 2, 2, 300, 500, {.block_size = block}));
    // Hidden elements may read what they like.
    EXPECT_NO_THROW(create_block_mask(mod, 2, 2, 500, 200, {.block_size = block}));
  }
}

TEST(CreateBlockMask, IndicesOutOfABufferAreProvedByItsContents) {
  const Buffer doc(std::vector<std::int32_t>(4096, 1), {.name = "doc"});
  const Buffer length(std::vector<std::int64_t>{0, 4096}, {.name = "length"});
  const MaskMod mod = [&](auto, auto, auto q, auto kv) { return kv < length[doc[q]]; };
  BlockMaskReport report;
  create_block_mask(mod, 1, 1, 4096, 4096, {.report = &report});
  EXPECT_EQ(report.evaluated, 0);
}

TEST(CreateBlockMask, TooLargeIsAnErrorNotAKill) {
  const MaskMod stripes = [](auto, auto, auto q, auto kv) { return (q + kv) % 2 == 0; };
  expect_error(
      ErrorKind::runtime,
      "[create_block_mask] the mask needs more than 1.0 MB; larger blocks make it smaller", [&] {
        create_block_mask(stripes, 1, 1, 10000, 10000, {.block_size = 1, .max_bytes = 1000000});
      });
  EXPECT_THROW(create_block_mask(stripes, 1, 1, std::int64_t{1} << 29, std::int64_t{1} << 29,
                                 {.block_size = 1, .max_bytes = 1000000}),
               Error);
}

TEST(CreateBlockMask, SizesOutOfRange) {
  const auto build = [](std::int64_t batch, std::int64_t q_len, BlockSize size) {
    return [=] { create_block_mask(kCausal, batch, 1, q_len, 8, {.block_size = size}); };
  };
  expect_error(ErrorKind::value, "[create_block_mask] batch must be in 0..1073741823; got -1",
               build(-1, 8, 128));
  expect_error(ErrorKind::value, "[create_block_mask] q_len must be in 0..1099511627776; got -3",
               build(1, -3, 128));
  expect_error(ErrorKind::value,
               "[create_block_mask] block_size.q must be in 1..1099511627776; got 0",
               build(1, 8, {0, 4}));
  expect_error(ErrorKind::value,
               "[create_block_mask] block_size.kv must be in 1..1099511627776; got -2",
               build(1, 8, {4, -2}));
  expect_error(
      ErrorKind::value,
      "[create_block_mask] the number of query blocks must be in 0..1073741823; got 1099511627776",
      build(1, std::int64_t{1} << 40, 1));
}

TEST(CreateBlockMask, BufferWithoutDataIsNamed) {
  const Buffer doc = Buffer::declare(DType::i32, {16}, {.name = "doc"});
  const MaskMod mod = [&](auto, auto, auto q, auto kv) { return doc[q] == doc[kv]; };
  EXPECT_THROW(create_block_mask(mod, 1, 1, 16, 16), Error);
}

TEST(CreateMask, OfAScoreModIsWhereItIsNotMinusInfinity) {
  const ScoreMod mod = [](auto score, auto, auto, auto q, auto kv) {
    return where(q >= kv, score - 3, -std::numeric_limits<double>::infinity());
  };
  const Tensor mask = create_mask(mod, 2, 1, 5, 7);
  EXPECT_EQ(mask.shape(), (Shape{2, 1, 5, 7}));
  for (std::int64_t q = 0; q < 5; ++q)
    for (std::int64_t kv = 0; kv < 7; ++kv) EXPECT_EQ(mask.at<bool>({1, 0, q, kv}), q >= kv);
}

TEST(CreateMask, RefusesWhatDoesNotFit) {
  EXPECT_THROW(create_mask(kCausal, 1, 1, std::int64_t{1} << 25, std::int64_t{1} << 25), Error);
}

TEST(CreateBlockMask, MoreElementsThanNumbers) {
  constexpr std::int64_t kLength = std::int64_t{1} << 35;
  const BlockMask mask =
      create_block_mask(kCausal, 1, 1, kLength, kLength, {.block_size = kLength / 4});
  EXPECT_EQ(mask.numel(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(mask.sparsity(), 100 * 6.0 / 16);
}

}  // namespace
}  // namespace quire::testing
