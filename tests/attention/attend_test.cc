// attend over a KVCache: every token has the bits of flex_attention over its sequence alone, in
// mixed steps, with masks, windows, released pages and shared prefixes; what is refused.
#include "quire/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "quire/error.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

Tensor random_tensor(const Shape& shape, DType dtype, std::mt19937_64& random) {
  Tensor values(shape, DType::f64);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < values.numel(); ++i) values.data_as<double>()[i] = normal(random);
  return values.to(dtype);
}

bool same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  const Tensor x = to(a, a.dtype()), y = to(b, b.dtype());
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(x.data(), y.data(),
                     static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype())) == 0;
}

// A cache of one layer whose slots without a token are NaN.
struct Harness {
  explicit Harness(const KVCacheOptions& options, std::uint64_t seed = 1)
      : cache(options), random(seed) {
    for (TensorView pages : {cache.k_pages(0), cache.v_pages(0)}) {
      Tensor nan(pages.shape(), DType::f64);
      std::fill_n(nan.data_as<double>(), nan.numel(), std::numeric_limits<double>::quiet_NaN());
      const Tensor bits = nan.to(pages.dtype());
      std::memcpy(pages.data(), bits.data(),
                  static_cast<std::size_t>(bits.numel()) * dtype_size(bits.dtype()));
    }
  }

  void append(SequenceId sequence, std::int64_t count) {
    const KVCacheOptions& o = cache.options();
    const NewTokens step[] = {{sequence, count}};
    cache.append(step);
    cache.write(0, step, random_tensor({count, o.kv_heads, o.head_dim}, o.dtype, random),
                random_tensor({count, o.kv_heads, o.v_head_dim}, o.dtype, random));
  }
  SequenceId create(std::int64_t length) {
    const SequenceId sequence = cache.create();
    append(sequence, length);
    return sequence;
  }

  // [1, heads, length, dim] of a sequence, zeros where pages were released.
  Tensor dense(const ConstTensorView& pages, SequenceId sequence) const {
    const SequenceView view = cache.view(sequence);
    Tensor made({1, pages.dim(1), view.length, pages.dim(3)}, DType::f64);
    const std::int64_t size = cache.options().page_size;
    for (std::int64_t h = 0; h < pages.dim(1); ++h)
      for (std::int64_t i = view.begin; i < view.length; ++i)
        for (std::int64_t d = 0; d < pages.dim(3); ++d)
          made.at<double>({0, h, i, d}) =
              pages.load_float({view.pages[static_cast<std::size_t>(i / size)], h, i % size, d});
    return made.to(pages.dtype());
  }

  KVCache cache;
  std::mt19937_64 random;
};

MaskMod rule_of(const AttendOptions& options) {
  if (options.mask_mod.has_value()) return *options.mask_mod;
  return options.window > 0 ? mods::sliding_window(options.window) : mods::causal();
}

void expect_alone(Harness& harness, const std::vector<NewTokens>& step, std::int64_t q_heads,
                  AttendOptions options, const std::string& what) {
  const KVCacheOptions& o = harness.cache.options();
  std::int64_t tokens = 0;
  for (const NewTokens& one : step) tokens += one.count;
  const Tensor q = random_tensor({tokens, q_heads, o.head_dim}, o.dtype, harness.random);
  AuxOutput aux;
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  const Tensor out = attend(harness.cache, 0, step, q, options);
  const KVCache& cache = harness.cache;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const std::int64_t count = step[i].count, length = cache.length(step[i].sequence);
    if (count == 0) continue;
    const auto b = static_cast<std::int64_t>(i);
    const auto rows = [&](const ConstTensorView& view) {
      return view.slice(0, first, first + count).transpose(0, 1).unsqueeze(0);
    };
    // As entry b of a batch: mods may ask for b.
    const std::int64_t batch = b + 1;
    const auto in_batch = [&](const ConstTensorView& view) {
      return view.expand({batch, view.dim(1), view.dim(2), view.dim(3)});
    };
    const Tensor k = harness.dense(cache.k_pages(0), step[i].sequence);
    const Tensor v = harness.dense(cache.v_pages(0), step[i].sequence);
    FlexAttentionOptions dense{.score_mod = options.score_mod, .enable_gqa = true};
    dense.block_mask = create_block_mask(rule_of(options), batch, q_heads, count, length,
                                         {.q_begin = length - count});
    AuxOutput dense_aux;
    dense.return_aux = options.return_aux;
    dense.aux = &dense_aux;
    const Tensor expected = flex_attention(in_batch(rows(q)), in_batch(k), in_batch(v), dense);
    const std::string where = what + " sequence " + std::to_string(i);
    EXPECT_TRUE(same_bits(rows(out), expected.view().slice(0, b, b + 1))) << where;
    const auto stats = [&](const ConstTensorView& view) {
      return view.slice(0, first, first + count).transpose(0, 1).unsqueeze(0);
    };
    EXPECT_TRUE(same_bits(stats(*aux.lse), dense_aux.lse->view().slice(0, b, b + 1))) << where;
    EXPECT_TRUE(same_bits(stats(*aux.max_scores), dense_aux.max_scores->view().slice(0, b, b + 1)))
        << where;
    first += count;
  }
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
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {1, 7, 16, 100}) {
      Harness harness(sizes(dtype, page_size));
      const std::vector<NewTokens> step{{harness.create(1500), 1},  {harness.create(300), 4},
                                        {harness.create(700), 150}, {harness.create(40), 40},
                                        {harness.create(17), 0},    {harness.create(1), 1}};
      for (const std::int64_t window : {0, 37, 600}) {
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
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {16, 100}) {
      Harness harness(sizes(dtype, page_size));
      const SequenceId root = harness.create(1900);
      std::vector<NewTokens> step{{root, 1}};
      for (const std::int64_t at : {1900, 1900, 1810, 700, 256, 255}) {
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
  const Tensor q = random_tensor({2, 4, 24}, DType::f32, harness.random);
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
  const Tensor q = random_tensor({3, 4, 24}, DType::f32, harness.random);
  Tensor out = Tensor::empty({3, 4, 32}, DType::f32);
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    cache.write(layer, step, random_tensor({3, 2, 24}, DType::f32, harness.random),
                random_tensor({3, 2, 32}, DType::f32, harness.random));
    plan.run(cache, layer, q, {.out = out.view()});
    EXPECT_TRUE(same_bits(out, attend(cache, layer, step, q))) << layer;
  }
  EXPECT_THROW(plan.run(cache, 3, q, {.out = out.view()}), Error);
  cache.append(b, 1);
  expect_error(ErrorKind::value,
               "[attend] the cache is another, or has changed since the plan was made",
               [&] { plan.run(cache, 0, q, {.out = out.view()}); });
}

TEST(Attend, WhatDoesNotFitIsRefused) {
  Harness harness(sizes(DType::f32, 16));
  const SequenceId a = harness.create(40);
  const Tensor q = random_tensor({2, 4, 24}, DType::f32, harness.random);
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
  expect_error(ErrorKind::value, "[attend] give mask_mod or window, not both",
               [&] { call(2, {.mask_mod = mods::causal(), .window = 2}); });
  const std::vector<NewTokens> step{{a, 2}};
  expect_error(ErrorKind::value,
               "[attend] q_heads must be a multiple of the cache's 2 kv_heads; got 3",
               [&] { AttendPlan(harness.cache, step, {.q_heads = 3}); });
  expect_error(ErrorKind::value, "[attend] q must be [tokens, q_heads, head_dim]; got [2, 4]",
               [&] { attend(harness.cache, 0, step, q.view().select(2, 0)); });
  harness.cache.release(a);
  EXPECT_THROW(call(2), Error);
  const std::vector<NewTokens> none;
  EXPECT_EQ(attend(harness.cache, 0, none, q.view().slice(0, 0, 0)).shape(), (Shape{0, 4, 32}));
}

}  // namespace
}  // namespace quire
