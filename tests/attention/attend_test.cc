// attend over a KVCache: every token has the bits of flex_attention over its sequence alone, in
// mixed steps, with masks, windows, released pages and shared prefixes; what is refused.
#include "quire/attend.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "quire/error.h"
#include "quire/mods.h"
#include "tests/support/attend_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"
#include "tests/support/slow_cpu.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::random_normal;
using testing::same_bits;

using Harness = testing::AttendHarness;

void expect_alone(Harness& harness, const std::vector<NewTokens>& step, std::int64_t q_heads,
                  const AttendOptions& options, const std::string& what) {
  EXPECT_EQ(testing::different_from_alone(harness, step, q_heads, options), "") << what;
}

KVCacheOptions sizes(DType dtype, std::int64_t page_size) {
  return {.kv_heads = 2,
          .head_dim = 24,
          .v_head_dim = 32,
          .dtype = dtype,
          .page_size = page_size,
          .n_pages = 9000 / page_size + 8};
}

TEST(Attend, MixedStepsHaveTheBitsOfEachSequenceAlone) {
  testing::FewerIfEmulated fewer(11);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {1, 7, 16, 100}) {
      Harness harness(sizes(dtype, page_size));
      const std::vector<NewTokens> step{{harness.create(1500), 1},  {harness.create(300), 4},
                                        {harness.create(700), 150}, {harness.create(40), 40},
                                        {harness.create(17), 0},    {harness.create(1), 1}};
      for (const std::int64_t window : {0, 37, 600}) {
        if (fewer.leaves_out()) continue;
        expect_alone(harness, step, 4, {.window = window},
                     "page " + std::to_string(page_size) + " window " + std::to_string(window));
      }
    }
  }
}

TEST(Attend, ModsSeePositionsAndTheNumberOfTheSequence) {
  const ScoreMod score = ScoreMod::parse("score * (1 + 0.1 * b) - 0.01 * h * (q_idx - kv_idx)");
  const MaskMod holes =
      MaskMod::parse("((kv_idx <= q_idx) & ((kv_idx + b) % 5 != h)) | (kv_idx // 256 == 2)");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Harness harness(sizes(dtype, 16));
    const SequenceId a = harness.create(1500), b = harness.create(301), c = harness.create(800);
    expect_alone(harness, {{a, 1}, {b, 3}, {c, 1}}, 4, {.score_mod = score, .mask_mod = holes},
                 "few");
    expect_alone(harness, {{a, 1}, {b, 80}, {c, 200}}, 4, {.score_mod = score, .mask_mod = holes},
                 "many");
    expect_alone(harness, {{a, 1}, {b, 80}, {c, 2}}, 4, {.score_mod = score}, "causal");
  }
}

TEST(Attend, SharedPrefixesChangeNoBit) {
  const ScoreMod score = ScoreMod::parse("score * (1 + 0.1 * b) - 0.01 * h * (q_idx - kv_idx)");
  const MaskMod holes = MaskMod::parse("(kv_idx <= q_idx) & ((kv_idx + b) % 5 != h)");
  testing::FewerIfEmulated fewer(3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {16, 100}) {
      if (fewer.leaves_out()) continue;
      Harness harness(sizes(dtype, page_size));
      const SequenceId root = harness.create(1900);
      std::vector<NewTokens> step{{root, 1}};
      for (const std::int64_t at : {1900, 1900, 1900, 1900, 1810, 700, 256, 255}) {
        const SequenceId fork = harness.cache.fork(root, at);
        harness.append(fork, 1 + 31 * static_cast<std::int64_t>(step.size()));
        step.push_back({fork, step.size() == 2 ? 3 : 1});
      }
      step.push_back({harness.create(600), 1});
      const SequenceId whole = harness.cache.fork(root, 1024);  // ends with the shared tiles
      step.push_back({whole, 1});
      const std::string what = "page " + std::to_string(page_size);
      expect_alone(harness, step, 4, {}, what);
      expect_alone(harness, step, 2, {.window = 500}, what + " window");
      expect_alone(harness, step, 4, {.score_mod = score, .mask_mod = holes}, what + " mods");
    }
  }
}

TEST(Attend, ReleasedKeysMustBeHidden) {
  Harness harness(sizes(DType::f32, 16));
  const SequenceId a = harness.create(400), b = harness.create(1000);
  harness.cache.release_before(b, 900);  // keys from 896 on are there
  expect_alone(harness, {{a, 1}, {b, 1}}, 4, {.window = 104}, "window");
  expect_alone(harness, {{a, 1}, {b, 1}}, 4, {.mask_mod = mods::sliding_window(104)}, "mask");
  expect_alone(harness, {{a, 70}, {b, 50}}, 4, {.mask_mod = mods::sliding_window(54)}, "chunk");
  const std::vector<NewTokens> step{{a, 1}, {b, 1}};
  const Tensor q = random_normal({2, 4, 24}, DType::f32, harness.random);
  const std::string text =
      "[attend] sequence 1 of the step has released its keys before 896, and a query may see them";
  for (const AttendOptions& options : {AttendOptions{}, AttendOptions{.window = 105},
                                       AttendOptions{.mask_mod = mods::sliding_window(105)},
                                       AttendOptions{.mask_mod = mods::streaming(2, 50)}}) {
    expect_error(ErrorKind::value, text, [&] { attend(harness.cache, 0, step, q, options); });
  }
}

TEST(Attend, PlansServeAllLayersUntilTheCacheChanges) {
  KVCacheOptions options = sizes(DType::f32, 16);
  options.layers = 3;
  Harness harness(options);
  const SequenceId a = harness.create(40), b = harness.create(70);
  KVCache& cache = harness.cache;
  const std::vector<NewTokens> step{{a, 2}, {b, 1}};
  AttendPlan plan(cache, step, {.q_heads = 4});
  EXPECT_EQ(plan.tokens(), 3);
  const Tensor q = random_normal({3, 4, 24}, DType::f32, harness.random);
  Tensor out = Tensor::empty({3, 4, 32}, DType::f32);
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    cache.write(layer, step, random_normal({3, 2, 24}, DType::f32, harness.random),
                random_normal({3, 2, 32}, DType::f32, harness.random));
    plan.run(cache, layer, q, {.out = out.view()});
    EXPECT_TRUE(same_bits(out, attend(cache, layer, step, q))) << layer;
  }
  expect_error(ErrorKind::index, "[attend] layer must be in 0..2; got 3",
               [&] { plan.run(cache, 3, q, {.out = out.view()}); });
  // A call that is refused leaves the plan good: page tables have not moved.
  const std::vector<NewTokens> many{{a, 500}};
  const std::int32_t* const table = cache.view(a).pages.data();
  expect_error(ErrorKind::value,
               "[KVCache::append] k must have shape [3, 500, 2, 24]; got [3, 4, 24]",
               [&] { cache.append(many, q, q); });
  EXPECT_EQ(cache.view(a).pages.data(), table);
  plan.run(cache, 2, q, {.out = out.view()});
  EXPECT_TRUE(same_bits(out, attend(cache, 2, step, q)));
  cache.append(b, 1);
  expect_error(ErrorKind::value,
               "[attend] the cache is another, or has changed since the plan was made",
               [&] { plan.run(cache, 0, q, {.out = out.view()}); });
}

TEST(Attend, WhatDoesNotFitIsRefused) {
  Harness harness(sizes(DType::f32, 16));
  const SequenceId a = harness.create(40);
  const Tensor q = random_normal({2, 4, 24}, DType::f32, harness.random);
  const auto call = [&](std::int64_t count, const AttendOptions& options = {}) {
    const std::vector<NewTokens> step{{a, count}};
    return attend(harness.cache, 0, step, q, options);
  };
  EXPECT_EQ(call(2).shape(), (Shape{2, 4, 32}));
  expect_error(ErrorKind::value, "[attend] sequence 0 of the step has 40 tokens; got a count of 41",
               [&] { call(41); });
  expect_error(ErrorKind::value, "[attend] sequence 0 of the step has 40 tokens; got a count of -1",
               [&] { call(-1); });
  expect_error(ErrorKind::value, "[attend] q must have shape [3, 4, 24]; got [2, 4, 24]",
               [&] { call(3); });
  expect_error(ErrorKind::value, "[attend] window must not be negative; got -2",
               [&] { call(2, {.window = -2}); });
  const std::vector<NewTokens> step{{a, 2}};
  expect_error(ErrorKind::value,
               "[attend] q_heads must be a multiple of the cache's 2 kv_heads; got 3",
               [&] { AttendPlan(harness.cache, step, {.q_heads = 3}); });
  expect_error(ErrorKind::value, "[attend] q must be [tokens, q_heads, head_dim]; got [2, 4]",
               [&] { attend(harness.cache, 0, step, q.view().select(2, 0)); });
  expect_error(ErrorKind::type, "[attend] q must be f32, f64, bf16 or f16; got i32",
               [&] { attend(harness.cache, 0, step, q.to(DType::i32)); });
  expect_error(ErrorKind::value, "[attend] scale must be finite; got inf",
               [&] { call(2, {.scale = std::numeric_limits<double>::infinity()}); });
  expect_error(ErrorKind::value, "[attend] the handle belongs to no sequence of this cache", [&] {
    const std::vector<NewTokens> unknown{{{7, 1}, 1}};
    attend(harness.cache, 0, unknown, q);
  });
  harness.cache.release(a);
  expect_error(ErrorKind::value, "[attend] the handle is stale: its sequence was released",
               [&] { call(2); });
  // A head dim that attention does not take is refused when the cache is made.
  expect_error(ErrorKind::value, "[KVCache] head_dim must be in 1..1024; got 1025",
               [] { KVCache wide({.head_dim = 1025, .n_pages = 4}); });
  const std::vector<NewTokens> none;
  EXPECT_EQ(attend(harness.cache, 0, none, q.view().slice(0, 0, 0)).shape(), (Shape{0, 4, 32}));
}

}  // namespace
}  // namespace quire
