// Steps over pages of the caller's: the bits of attend over a KVCache with the same pages, for
// every layer of one plan; codes; what is refused.
#include "quire/paged_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "quire/attend.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "tests/support/attend_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::random_normal;
using testing::same_bits;

using Harness = testing::AttendHarness;

// The page table of a step's sequences, as an engine would have it.
struct Table {
  Table(const KVCache& cache, const std::vector<NewTokens>& step) : offsets{0} {
    std::size_t most = 1;
    for (const NewTokens& tokens : step)
      most = std::max(most, cache.view(tokens.sequence).pages.size());
    pages.assign(step.size() * most, -1);
    for (std::size_t i = 0; i < step.size(); ++i) {
      const SequenceView view = cache.view(step[i].sequence);
      std::ranges::copy(view.pages, pages.begin() + static_cast<std::ptrdiff_t>(i * most));
      lengths.push_back(static_cast<std::int32_t>(view.length));
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(step[i].count));
    }
    width = static_cast<std::int64_t>(most);
  }

  PagedKeys keys(const KVView& k, const KVView& v) const {
    const std::int64_t n = std::ssize(lengths);
    return {.k = k,
            .v = v,
            .page_table = ConstTensorView(pages.data(), DType::i32, {n, width}),
            .lengths = ConstTensorView(lengths.data(), DType::i32, {n})};
  }
  Jagged queries(const Tensor& q) const {
    return {.values = q,
            .offsets = ConstTensorView(offsets.data(), DType::i32, {std::ssize(offsets)})};
  }

  std::vector<std::int32_t> pages, lengths, offsets;
  std::int64_t width = 0;
};

void expect_bits_of_attend(Harness& harness, const std::vector<NewTokens>& step,
                           const AttentionOptions& options, const std::string& what) {
  const KVCache& cache = harness.cache;
  const KVCacheOptions& sizes = cache.options();
  std::int64_t tokens = 0;
  for (const NewTokens& one : step) tokens += one.count;
  const Tensor q = random_normal({tokens, 4, sizes.head_dim}, sizes.dtype, harness.random);
  const Table table(cache, step);
  const PagedKeys keys = table.keys(cache.k_pages(0), cache.v_pages(0));
  AttentionPlan plan(paged_step(table.queries(q), keys, options));
  EXPECT_EQ(plan.tokens(), tokens) << what;
  const std::int64_t v_dim = cache.v_pages(0).dim(3);
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    Tensor out = Tensor::empty({tokens, 4, v_dim}, sizes.dtype);
    plan.run(q, cache.k_pages(layer), cache.v_pages(layer), {.out = out.view()});
    EXPECT_TRUE(same_bits(out, attend(cache, layer, step, q, options))) << what << " " << layer;
  }
}

KVCacheOptions sizes(DType dtype, std::int64_t page_size) {
  return {.layers = 2,
          .kv_heads = 2,
          .head_dim = 24,
          .v_head_dim = 32,
          .dtype = dtype,
          .page_size = page_size,
          .n_pages = 9000 / page_size + 8};
}

TEST(PagedStep, HasTheBitsOfAttend) {
  const ScoreMod score = ScoreMod::parse("score * (1 + 0.1 * b) - 0.01 * h * (q_idx - kv_idx)");
  const MaskMod holes = MaskMod::parse("(kv_idx <= q_idx) & ((kv_idx + b) % 5 != h)");
  testing::FewerIfEmulated fewer(3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t page_size : {7, 16}) {
      if (fewer.leaves_out()) continue;
      Harness harness(sizes(dtype, page_size));
      const std::vector<NewTokens> step{{harness.create(1500), 1},  {harness.create(300), 4},
                                        {harness.create(700), 150}, {harness.create(40), 40},
                                        {harness.create(17), 0},    {harness.create(1), 1}};
      const std::string what = "page " + std::to_string(page_size);
      for (const std::int64_t window : {0, 37})
        expect_bits_of_attend(harness, step, {.window = window},
                              what + " window " + std::to_string(window));
      expect_bits_of_attend(harness, step, {.score_mod = score, .mask_mod = holes}, what + " mods");
      expect_bits_of_attend(harness, step, {.mask_mod = holes, .window = 100}, what + " both");
    }
  }
}

TEST(PagedStep, SharedPrefixesChangeNoBit) {
  Harness harness(sizes(DType::f32, 16));
  const SequenceId root = harness.create(1900);
  std::vector<NewTokens> step{{root, 1}};
  for (const std::int64_t at : {1900, 1810, 700, 256}) {
    const SequenceId fork = harness.cache.fork(root, at);
    harness.append(fork, 1 + 31 * static_cast<std::int64_t>(step.size()));
    step.push_back({fork, 1});
  }
  expect_bits_of_attend(harness, step, {}, "causal");
  expect_bits_of_attend(harness, step, {.window = 500}, "window");
}

TEST(PagedStep, RefusesWhatItCannotDo) {
  Harness harness(sizes(DType::f32, 16));
  const std::vector<NewTokens> step{{harness.create(40), 3}, {harness.create(5), 5}};
  Table table(harness.cache, step);
  const Tensor q = random_normal({8, 4, 24}, DType::f32, harness.random);
  const PagedKeys keys = table.keys(harness.cache.k_pages(0), harness.cache.v_pages(0));
  const auto make = [&](const AttentionOptions& options) {
    AttentionPlan(paged_step(table.queries(q), keys, options));
  };
  make({});
  expect_error(ErrorKind::value, "[paged_step] window must not be negative; got -1",
               [&] { make({.window = -1}); });
  expect_error(ErrorKind::value, "[paged_step] q_begin follows from the cache; do not give it",
               [&] { make({.q_begin = {0}}); });
  expect_error(ErrorKind::value,
               "[paged_step] sequence_options are for steps over a KVCache: they name sequences by "
               "its handles",
               [&] { make({.sequence_options = {{.sequence = step[0].sequence}}}); });
  table.lengths[1] = 4;
  expect_error(ErrorKind::value, "[paged_step] sequence 1 of the step has 4 tokens; got 5 queries",
               [&] { make({}); });
  table.lengths[1] = 5;
  const Tensor odd = random_normal({8, 3, 24}, DType::f32, harness.random);
  expect_error(ErrorKind::value, "[paged_step] q_heads must be a multiple of kv_heads; got 3 and 2",
               [&] { paged_step(table.queries(odd), keys, {}); });
  expect_error(
      ErrorKind::not_implemented, "[paged_step] a step over a cache has no gradients",
      [&] { AttentionBackwardPlan(paged_step(table.queries(q), keys, {}), WantedGradients{}); });
}

}  // namespace
}  // namespace quire
