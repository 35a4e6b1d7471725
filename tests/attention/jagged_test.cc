// Jagged batches: many and long sequences, empty ones, holes, stats, plans, faults.
#include "quire/jagged.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

bool is_slow() {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  return kernels_are_slow();
#endif
}

std::vector<std::int64_t> random_lengths(std::int64_t count, std::int64_t least, std::int64_t most,
                                         std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(count));
  for (std::int64_t& one : lengths)
    one =
        least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
  return lengths;
}

TEST(Jagged, AThousandSequencesAreEachAlone) {
  JaggedCase c{.q_lengths = random_lengths(is_slow() ? 200 : 1000, 0, 64, 1),
               .kv_lengths = {},
               .q_heads = 4,
               .mask_mod = mods::causal()};
  c.kv_lengths = c.q_lengths;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    c.dtype = dtype;
    const JaggedTensors t(c, 5);
    EXPECT_EQ(first_different(run_jagged(c, t), c, t), -1) << dtype_name(dtype);
  }
}

TEST(Jagged, LongAndShortSequencesInOneBatch) {
  const std::int64_t longest = is_slow() ? 700 : 4096;
  for (const bool masked : {false, true}) {
    JaggedCase c{.q_lengths = {longest, 0, 1, 7, 300, 1, longest / 2 + 1, 13},
                 .kv_lengths = {longest, 5, longest, 0, 31, 1, 64, 2000},
                 .q_heads = 2,
                 .kv_heads = 1};
    if (masked) c.mask_mod = MaskMod::parse("(kv_idx - q_idx) % 7 != b");
    c.asks_for_b = masked;
    const JaggedTensors t(c, 9);
    const JaggedResult serial = run_jagged(c, t, make_thread_pool(1).get());
    EXPECT_EQ(first_different(serial, c, t), -1);
    for (const int threads : {2, 7})
      EXPECT_TRUE(same_bits(run_jagged(c, t, make_thread_pool(threads).get()), serial)) << threads;
  }
}

TEST(Jagged, ASequenceWithoutKeysGivesZeroAndMinusInfinity) {
  const JaggedCase c{.q_lengths = {3, 70, 2}, .kv_lengths = {0, 0, 4}};
  const JaggedTensors t(c, 3);
  const JaggedResult all = run_jagged(c, t);
  for (std::int64_t row = 0; row < 73; ++row) {
    EXPECT_EQ(all.out.at<float>({row, 1, 5}), 0);
    EXPECT_EQ(all.lse.at<float>({row, 1}), -std::numeric_limits<float>::infinity());
    EXPECT_EQ(all.max_scores.at<float>({row, 1}), -std::numeric_limits<float>::infinity());
  }
  EXPECT_TRUE(std::isfinite(all.lse.at<float>({73, 0})));
  EXPECT_NE(all.out.at<float>({74, 1, 5}), 0);
}

TEST(Jagged, NoSequencesAtAll) {
  for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
    JaggedCase c{.q_lengths = {}, .kv_lengths = {}, .q_order = order};
    c.mask_mod = mods::causal();
    const JaggedTensors t(c, 3);
    const JaggedResult all = run_jagged(c, t);
    EXPECT_EQ(all.out.shape(),
              order == JaggedOrder::kTokens ? (Shape{0, 2, 16}) : (Shape{2, 0, 16}));
    EXPECT_EQ(all.lse.shape(), order == JaggedOrder::kTokens ? (Shape{0, 2}) : (Shape{2, 0}));
  }
  const JaggedCase empty{.q_lengths = {0, 0}, .kv_lengths = {0, 3}};
  EXPECT_EQ(run_jagged(empty, JaggedTensors(empty, 1)).out.shape(), (Shape{0, 2, 16}));
}

TEST(Jagged, HolesAreNeitherReadNorLeftUnset) {
  for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
    JaggedCase c{.q_lengths = {5, 40, 0, 3}, .kv_lengths = {9, 40, 2, 3}};
    c.q_order = c.k_order = order;
    c.q_holes = c.kv_holes = true;
    const JaggedTensors t(c, 8);  // NaN in the holes
    const JaggedResult all = run_jagged(c, t);
    EXPECT_EQ(first_different(all, c, t), -1);
    const bool by_token = order == JaggedOrder::kTokens;
    const std::int64_t total = all.out.dim(by_token ? 0 : 1);
    std::vector<bool> used(static_cast<std::size_t>(total));
    for (std::size_t i = 0; i < t.q.begin.size(); ++i)
      for (std::int64_t row = 0; row < t.q.length[i]; ++row)
        used[static_cast<std::size_t>(t.q.begin[i] + row)] = true;
    for (std::int64_t row = 0; row < total; ++row) {
      if (used[static_cast<std::size_t>(row)]) continue;
      const std::int64_t first = by_token ? row : 1, second = by_token ? 1 : row;
      EXPECT_EQ(all.out.at<float>({first, second, 7}), 0) << row;
      EXPECT_EQ(all.lse.at<float>({first, second}), 0) << row;
      EXPECT_EQ(all.max_scores.at<float>({first, second}), 0) << row;
    }
  }
}

TEST(Jagged, SequencesOfTheSameLengthsShareAMask) {
  const JaggedCase c{.q_lengths = {300, 5, 300, 5}, .kv_lengths = {300, 5, 300, 6}};
  const JaggedTensors t(c, 1);
  const JaggedBlockMask shared =
      create_jagged_block_mask(mods::causal(), 2, t.q.jagged, t.k.jagged);
  EXPECT_EQ(shared.masks().size(), 3u);
  EXPECT_EQ(&shared[0], &shared[2]);
  EXPECT_EQ(shared[3].shape(), (Shape{1, 2, 5, 6}));
  EXPECT_EQ(shared[0].mask_mod().to_string(), mods::causal().to_string());
  const JaggedBlockMask own = create_jagged_block_mask(MaskMod::parse("q_idx >= kv_idx + 128 * b"),
                                                       2, t.q.jagged, t.k.jagged);
  EXPECT_EQ(own.masks().size(), 4u);
  EXPECT_EQ(own[2].mask_mod().to_string(), MaskMod::parse("q_idx >= kv_idx + 128 * 2").to_string());
  EXPECT_FALSE(own[0].same_blocks(own[2]));
  expect_error(ErrorKind::index, "[JaggedBlockMask] sequence 4 is outside a batch of 4",
               [&] { shared[4]; });
}

TEST(Jagged, AMaskMadeBeforeGivesTheSameBits) {
  JaggedCase c{.q_lengths = {200, 5, 0}, .kv_lengths = {150, 5, 3}};
  c.mask_mod = MaskMod::parse("q_idx + b >= kv_idx");
  const JaggedTensors t(c, 1);
  const JaggedBlockMask mask =
      create_jagged_block_mask(*c.mask_mod, 1, t.q.jagged, t.k.jagged, {.block_size = 32});
  const Tensor out = flex_attention(t.q.jagged, t.k.jagged, t.v.jagged, {.block_mask = mask});
  EXPECT_TRUE(same_bits(out, run_jagged(c, t).out));
}

TEST(Jagged, APlanServesValuesInOtherPlaces) {
  JaggedCase c{.q_lengths = {70, 1, 9}, .kv_lengths = {80, 30, 9}};
  c.q_holes = true;
  c.mask_mod = mods::causal();
  const JaggedTensors t(c, 1);
  const JaggedResult want = run_jagged(c, t);
  JaggedAttentionPlan plan(t.q.jagged, t.k.jagged, t.v.jagged, c.options());
  EXPECT_EQ(plan.compute_type(), DType::f32);
  EXPECT_GT(plan.scratch_bytes(), 0u);
  // Out is every second element of its memory, which says what a run leaves alone.
  const std::int64_t total = want.out.dim(0);
  Tensor memory({total, 2, 32}, DType::f32), lse({total, 2}, DType::f32);
  const Tensor q = t.q.memory.clone();
  for (int run = 0; run < 2; ++run) {
    plan.run(q, t.k.jagged.values, t.v.jagged.values,
             {.out = memory.view().slice(2, 0, 32, 2), .lse = lse.view()});
    EXPECT_TRUE(same_bits(memory.view().slice(2, 0, 32, 2), want.out));
    EXPECT_TRUE(same_bits(lse, want.lse));
  }
  expect_error(ErrorKind::value,
               "[flex_attention] the plan was made for a query of f32 " + to_string(q.shape()) +
                   "; got f32 " + to_string(t.k.jagged.values.shape()),
               [&] {
                 plan.run(t.k.jagged.values, t.k.jagged.values, t.v.jagged.values,
                          {.out = memory.view()});
               });
  expect_error(ErrorKind::value,
               "[flex_attention] out must have shape " + to_string(want.out.shape()) + "; got " +
                   to_string(memory.shape()),
               [&] { plan.run(q, t.k.jagged.values, t.v.jagged.values, {.out = memory.view()}); });
}

TEST(Jagged, AFaultNamesTheSequenceAsB) {
  JaggedCase c{.q_lengths = {2, 70, 2}, .kv_lengths = {3, 4, 90}};
  const Buffer table(std::vector<float>(50, 1.0f), {.name = "table"});
  c.score_mod = ScoreMod::parse("score + table[kv_idx]", {{"table", table}});
  const JaggedTensors t(c, 1);
  expect_error(ErrorKind::index,
               "[formula] index 50 is outside buffer 'table' of size 50 (axis 0) at b=2, h=0, "
               "q_idx=0, kv_idx=50",
               [&] { run_jagged(c, t); });
  // A rule that asks for b is proved with the sequence's own.
  c.score_mod.reset();
  c.mask_mod = MaskMod::parse("table[kv_idx + 30 * b] > 0", {{"table", table}});
  expect_error(ErrorKind::index,
               "[formula] index 60 is outside buffer 'table' of size 50 (axis 0) at b=2, h=0, "
               "q_idx=0, kv_idx=0",
               [&] { run_jagged(c, t); });
}

}  // namespace
}  // namespace quire::testing
