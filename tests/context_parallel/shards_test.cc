// Shards: who holds what, balance and bytes of plans, cutting and joining.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "quire/context_parallel.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/rank_threads.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

using namespace context_parallel;

// Ids of documents with lengths like those of text: from hundreds to tens of thousands of tokens,
// or to `most`.
Tensor document_ids(std::int64_t length, std::uint64_t seed, std::int64_t most) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> size(8, 1);
  Tensor ids({length}, DType::i32);
  for (std::int64_t at = 0, id = 0; at < length; ++id) {
    const std::int64_t count = std::min(most, 100 + static_cast<std::int64_t>(size(random)));
    const std::int64_t end = std::min(length, at + count);
    for (; at < end; ++at) ids.data_as<std::int32_t>()[at] = static_cast<std::int32_t>(id);
  }
  return ids;
}

BlockMask mask_of(const MaskMod& mod, std::int64_t length) {
  return create_block_mask(mod, 1, 1, length, length);
}

TEST(Shards, PlacesOfPieces) {
  const Shards shards(3500, 2, 1024, {0, 1, 1, 0});
  EXPECT_EQ(shards.tokens(0), 1024 + 428);
  EXPECT_EQ(shards.tokens(1), 2048);
  EXPECT_EQ(shards.ranges(0), (std::vector<Range>{{0, 1024}, {3072, 3500}}));
  EXPECT_EQ(shards.ranges(1), (std::vector<Range>{{1024, 3072}}));
  EXPECT_EQ(shards.place(3), 1024);
  EXPECT_EQ(shards.positions(0)[1024], 3072);
  EXPECT_EQ(shards.positions(0).size(), 1452u);
}

TEST(Shards, WhatDoesNotFitIsRefused) {
  expect_error(ErrorKind::value, "[Shards] piece_length must be a multiple of 1024; got 1500", [] {
    Shards(3000, 2, 1500, {0, 1});
  });
  expect_error(ErrorKind::value, "[Shards] 3000 tokens in pieces of 1024 need 3 owners; got 2", [] {
    Shards(3000, 2, 1024, {0, 1});
  });
  expect_error(ErrorKind::value, "[Shards] the owner of piece 1 must be one of 2 ranks; got 2", [] {
    Shards(2000, 2, 1024, {0, 2});
  });
  expect_error(
      ErrorKind::value,
      "[plan_shards] the block mask must be of a sequence with itself; got 10 queries from "
      "0 on and 20 keys",
      [] { plan_shards(create_block_mask(mods::causal(), 1, 1, 10, 20), 2); });
}

// The rows of the issue: 65,536 tokens on 4 ranks.
TEST(PlanShards, BalanceAndBytesAt64k) {
  constexpr std::int64_t kLength = 65536;
  const auto plan = [](const MaskMod& mod) {
    const BlockMask mask = mask_of(mod, kLength);
    const Shards shards = plan_shards(mask, 4);
    const ShardReport made = report(shards, mask);
    EXPECT_LE(made.balance, 1.05) << mod.to_string();
    EXPECT_LE(made.token_balance, 1.25) << mod.to_string();
    return made.share_of_gathering;
  };
  // Half of the pairs, and yet at least 0.67 of what gathering moves: the r ranks whose last
  // queries come first hold r / 4 of the pairs, so reach to sqrt(r / 4) of the keys.
  EXPECT_LE(plan(mods::causal()), 0.76);
  EXPECT_LE(plan(mods::causal() & mods::sliding_window(4096)), 0.10);
  EXPECT_LE(plan(mods::sliding_window(2048, 2048)), 0.10);
  // A document that is half of the sequence has most of the pairs, and is spread like a causal
  // mask.
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Tensor short_ones = document_ids(kLength, seed, 8192);
    EXPECT_LE(plan(mods::causal() & mods::document(Buffer(short_ones))), 0.15) << seed;
    const Tensor any = document_ids(kLength, seed, kLength);
    EXPECT_LE(plan(mods::causal() & mods::document(Buffer(any))), 0.30) << seed;
  }
}

// Bytes of a causal mask over 65,536 tokens on 4 ranks, of what gathering all keys moves. With as
// many key heads as query heads, heads travel: 3/4 of queries, keys, values and outputs are 2 / 4
// of gathering, and lse a little more. With few key heads, keys do.
TEST(Traffic, TheLesserIsTaken) {
  constexpr std::int64_t kLength = 65536;
  const auto share = [](const MaskMod& mod, std::int64_t kv_heads, DType dtype,
                        Exchange exchange = Exchange::kLeast) {
    const BlockMask mask = mask_of(mod, kLength);
    AttentionShape shape{.batch = 1, .q_heads = 32, .head_dim = 128, .kv_batch = 1};
    shape.kv_heads = kv_heads;
    shape.v_head_dim = 128;
    shape.q_dtype = shape.k_dtype = shape.v_dtype = dtype;
    const Traffic made = traffic(plan_shards(mask, 4), mask, shape, exchange);
    return static_cast<double>(made.forward) / static_cast<double>(made.gathering);
  };
  EXPECT_LE(share(mods::causal(), 32, DType::f32), 0.505);
  EXPECT_LE(share(mods::causal(), 32, DType::bf16), 0.505);
  EXPECT_NEAR(share(mods::causal(), 8, DType::bf16), 0.75, 0.005);
  EXPECT_NEAR(share(mods::causal(), 8, DType::bf16, Exchange::kHeads), 1.25, 0.01);
  EXPECT_LE(share(mods::causal() & mods::sliding_window(4096), 32, DType::f32), 0.10);
}

TEST(PlanShards, AnyLengthAndRanks) {
  for (const std::int64_t length : {0, 1, 1000, 1024, 5000, 70000}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      const Shards shards = plan_shards(length, ranks);
      std::vector<bool> seen(static_cast<std::size_t>(length));
      for (int rank = 0; rank < ranks; ++rank)
        for (const std::int64_t i : shards.positions(rank))
          seen[static_cast<std::size_t>(i)] = true;
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}), length);
      if (length > 0) plan_shards(mask_of(mods::causal(), length), ranks);
    }
  }
}

TEST(Shards, UnshardIsTheWhole) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor whole = random_tensor({2, 3, 5000, 4}, dtype, 1);
    const Shards shards = plan_shards(mask_of(mods::causal(), 5000), 3);
    on_ranks(3, [&](Communicator& group) {
      const Tensor mine = shard(whole, shards, group.rank());
      EXPECT_EQ(mine.dim(2), shards.tokens(group.rank()));
      EXPECT_TRUE(same_bits(unshard(mine, shards, group), whole));
    });
  }
  expect_error(ErrorKind::value,
               "[shard] axis 1 must have the 5000 tokens of the shards; got [2, 3, 4]", [] {
                 shard(Tensor({2, 3, 4}, DType::f32), plan_shards(5000, 2), 0, 1);
               });
}

}  // namespace
}  // namespace quire::testing
