// key_weights and entropy: against the f64 reference over random calls; the same bits whatever the
// threads, pages and batches, and from the scores that a step keeps or from a second pass; output,
// lse and max_scores do not change by asking for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "quire/attend.h"
#include "quire/isa.h"
#include "quire/paged.h"
#include "reference/attention.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/attend_case.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"
#include "tests/support/paged_pool.h"
#include "tests/support/property.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr int kCases = 60;  // of each test; make check-all runs many more

std::int64_t longest_of_isa() { return kernels_are_slow() ? 200 : 1500; }

AttentionCase random_case(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  AttentionCase c;
  c.batch = 1 + below(random, 2);
  c.kv_heads = 1 + below(random, 2);
  c.q_heads = c.kv_heads * (1 + below(random, 3));
  c.q_len = chance(random, 30) ? 1 : 1 + below(random, 150);
  c.kv_len = 1 + below(random, longest_of_isa());
  c.head_dim = 1 + below(random, 30);
  c.v_head_dim = 1 + below(random, 30);
  c.q_dtype = c.k_dtype = c.v_dtype = kTypes[below(random, 5)];
  c.q_begin = chance(random, 50) ? 0 : below(random, 60);
  if (chance(random, 40)) c.score_mod = ScoreMod::parse("score - 0.01 * h * (q_idx - kv_idx)");
  if (chance(random, 60))
    c.mask_mod = random_mask_mod(random, {c.batch, c.q_heads, c.q_begin + c.q_len, c.kv_len},
                                 /*floats=*/false);
  return c;
}

constexpr AuxRequest kAll{.lse = true, .max_scores = true, .key_weights = true, .entropy = true};

struct Result {
  Tensor out;
  AuxOutput aux;
};

Result run(const AttentionTensors& t, FlexAttentionOptions options, const AuxRequest& request) {
  Result result;
  options.return_aux = request;
  options.aux = &result.aux;
  result.out = flex_attention(t.q, t.k, t.v, options);
  return result;
}

TEST(KeyWeights, AreTheReferences) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    AttentionCase c = random_case(random);
    c.kv_len = std::min<std::int64_t>(c.kv_len, 400);
    const AttentionTensors t(c, static_cast<std::uint64_t>(seed));
    AuxRequest request = kAll;
    const std::int64_t begin = below(random, c.q_len + 1),
                       end = begin + below(random, c.q_len - begin + 1);
    const bool all = chance(random, 40);
    if (!all) request.key_weights_queries = {begin, end};
    reference::AttentionOptions options{
        .score_mod = c.score_mod, .mask_mod = c.mask_mod, .q_begin = {c.q_begin}};
    FlexAttentionOptions with_sinks = c.options();
    if (chance(random, 40)) {  // of which some take nearly all, and some nothing
      options.sinks.emplace();
      for (std::int64_t h = 0; h < c.q_heads; ++h)
        options.sinks->push_back(static_cast<double>(below(random, 300)) * 0.5 - 90);
      with_sinks.sinks = Buffer(Tensor::from(*options.sinks));
    } else if (chance(random, 30)) {
      options.weight_mod = with_sinks.weight_mod = ScoreMod::parse("relu(score) + 0.01 * h");
      options.normalize = chance(random, 50);
      if (options.normalize) with_sinks.normalize = Normalize::kSum;
      request.entropy = request.max_scores = false;
    }
    const Result ours = run(t, with_sinks, request);
    if (!all) options.key_weights_queries = {begin, end};
    const reference::AttentionOutput exact = reference::attention({t.q, t.k, t.v}, options);
    const double most = c.q_dtype == DType::f64 ? 1e-11 : 2e-5;
    const double weight = options.weight_mod && !options.normalize ? 8 : 1;  // the largest
    ASSERT_TRUE(largest_error(ours.aux.key_weights->to(DType::f64), exact.key_weights) <
                most * weight * static_cast<double>(c.q_len));
    if (options.weight_mod.has_value()) continue;
    ASSERT_TRUE(largest_error(ours.aux.entropy->to(DType::f64), exact.entropy) < 10 * most);
  }
}

TEST(KeyWeights, ChangeNothingElse) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const AttentionCase c = random_case(random);
    const AttentionTensors t(c, static_cast<std::uint64_t>(seed));
    FlexAttentionOptions options = c.options();
    if (chance(random, 30)) {
      options.dropout_p = 0.4;
      options.seed = static_cast<std::uint64_t>(seed);
    }
    const Result with = run(t, options, kAll);
    const Result without = run(t, options, {.lse = true, .max_scores = true});
    ASSERT_TRUE(same_bits(with.out, without.out));
    ASSERT_TRUE(same_bits(*with.aux.lse, *without.aux.lse));
    ASSERT_TRUE(same_bits(*with.aux.max_scores, *without.aux.max_scores));
    // On other threads, and dropout has no part in them.
    SerialExecutor serial;
    options.executor = &serial;
    options.dropout_p = 0;
    const Result again = run(t, options, kAll);
    ASSERT_TRUE(same_bits(*with.aux.key_weights, *again.aux.key_weights));
    ASSERT_TRUE(same_bits(*with.aux.entropy, *again.aux.entropy));
  }
}

// One query's scores are kept; the same query beside others is computed by a second pass.
TEST(KeyWeights, OfOneQueryAreThoseOfAPass) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    AttentionCase c = random_case(random);
    c.mask_mod.reset();
    c.q_len = 2 + below(random, 100);
    const AttentionTensors t(c, static_cast<std::uint64_t>(seed));
    const std::int64_t row = below(random, c.q_len);
    AuxRequest request = kAll;
    request.key_weights_queries = {row, row + 1};
    const Result many = run(t, c.options(), request);
    AttentionCase one = c;
    one.q_len = 1;
    one.q_begin = c.q_begin + row;
    AttentionTensors alone = t;
    alone.q = t.q.slice(2, row, row + 1);
    const Result single = run(alone, one.options(), kAll);
    ASSERT_TRUE(same_bits(*many.aux.key_weights, *single.aux.key_weights));
    ASSERT_TRUE(same_bits(many.aux.entropy->view().slice(2, row, row + 1), *single.aux.entropy));
  }
}

TEST(KeyWeights, OfPagesAndJaggedBatchesAreThoseOfEachSequence) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    JaggedCase c;
    const std::int64_t count = 1 + below(random, 3);
    for (std::int64_t i = 0; i < count; ++i) {
      c.q_lengths.push_back(below(random, 90));
      c.kv_lengths.push_back(below(random, longest_of_isa() / 2));
    }
    c.q_heads = 4;
    c.k_order = chance(random, 50) ? JaggedOrder::kTokens : JaggedOrder::kHeads;
    c.kv_holes = chance(random, 50);
    c.q_holes = chance(random, 50);
    const JaggedTensors t(c, static_cast<std::uint64_t>(seed));
    AuxOutput aux;
    JaggedAttentionOptions options = c.options();
    options.return_aux = {.key_weights = true, .entropy = true, .key_weights_queries = {-5}};
    options.aux = &aux;
    flex_attention(t.q.jagged, t.k.jagged, t.v.jagged, options);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto part = [&](const JaggedValues& of, JaggedOrder order) {
        const int axis = order == JaggedOrder::kTokens ? 0 : 1;
        const ConstTensorView rows =
            of.jagged.values.slice(axis, of.begin[at], of.begin[at] + of.length[at]);
        return (axis == 0 ? rows.permute({1, 0, 2}) : rows).unsqueeze(0);
      };
      AuxOutput alone;
      const std::int64_t first = std::max<std::int64_t>(c.q_lengths[at] - 5, 0);
      FlexAttentionOptions single{
          .enable_gqa = true,
          .return_aux = {.key_weights = true, .entropy = true, .key_weights_queries = {first}},
          .aux = &alone};
      flex_attention(part(t.q, c.q_order), part(t.k, c.k_order), part(t.v, c.v_order), single);
      const bool tokens_first = c.k_order == JaggedOrder::kTokens;
      const ConstTensorView found = aux.key_weights->view().slice(
          tokens_first ? 0 : 1, t.k.begin[at], t.k.begin[at] + t.k.length[at]);
      ASSERT_TRUE(same_bits(tokens_first ? found.permute({1, 0}) : found,
                            std::as_const(*alone.key_weights).view().select(0, 0)));
    }
  }
}

TEST(KeyWeights, OfAStep) {
  AttendHarness harness(
      {.kv_heads = 2, .head_dim = 32, .v_head_dim = 32, .page_size = 16, .n_pages = 400});
  std::mt19937_64 random(3);
  for (const std::int64_t tokens : {1, 5, 70}) {
    const SequenceId a = harness.create(1100), b = harness.create(90);
    const std::vector<NewTokens> step{{a, tokens}, {b, 1}};
    const Tensor q = random_normal({tokens + 1, 4, 32}, DType::f32, random);
    AuxOutput aux, alone;
    AttendOptions options{.return_aux = {.key_weights = true, .entropy = true}, .aux = &aux};
    attend(harness.cache, 0, step, q, options);
    EXPECT_EQ(aux.key_weights->shape(), (Shape{2, 4, 1100}));
    const Tensor k = harness.dense(harness.cache.k_pages(0), a);
    const Tensor v = harness.dense(harness.cache.v_pages(0), a);
    FlexAttentionOptions single{.mask_mod = MaskMod::parse("q_idx >= kv_idx"),
                                .enable_gqa = true,
                                .q_begin = {1100 - tokens},
                                .return_aux = {.key_weights = true, .entropy = true},
                                .aux = &alone};
    flex_attention(q.view().slice(0, 0, tokens).permute({1, 0, 2}).unsqueeze(0), k, v, single);
    EXPECT_TRUE(same_bits(aux.key_weights->view().slice(0, 0, 1), *alone.key_weights)) << tokens;
    EXPECT_TRUE(same_bits(aux.entropy->view().slice(0, 0, tokens).permute({1, 0}),
                          std::as_const(*alone.entropy).view().select(0, 0)))
        << tokens;
    const ConstTensorView behind = aux.key_weights->view().select(0, 1).slice(1, 90, 1100);
    for (const float weight : floats(behind)) EXPECT_EQ(weight, 0);
  }
}

TEST(KeyWeights, OfARangeThatIsNotThereAreRefused) {
  const Tensor x = random_tensor({1, 1, 4, 8}, DType::f32, 1);
  AuxOutput aux;
  FlexAttentionOptions options{.return_aux = {.key_weights = true, .key_weights_queries = {2, 5}},
                               .aux = &aux};
  expect_error(ErrorKind::value,
               "[flex_attention] key_weights_queries must be a range of the 4 queries; got 2 to 5",
               [&] { flex_attention(x, x, x, options); });
}

// Values that are the first columns of keys' rows: the bits of the same values copied.
TEST(LatentKeys, AreTheirValuesCopied) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    AttentionCase c = random_case(random);
    c.head_dim = chance(random, 20) ? 576 : 1 + below(random, 80);
    c.v_head_dim = chance(random, 50) ? c.head_dim / 16 * 16 : 1 + below(random, c.head_dim);
    c.v_head_dim = std::max<std::int64_t>(c.v_head_dim, 1);
    if (c.head_dim == 576) c.kv_len = std::min<std::int64_t>(c.kv_len, 300);
    c.kv_heads = 1;
    c.q_heads = 1 + below(random, 20);
    if (c.mask_mod.has_value())
      c.mask_mod = random_mask_mod(random, {c.batch, c.q_heads, c.q_begin + c.q_len, c.kv_len},
                                   /*floats=*/false);
    c.order = chance(random, 70) ? Order::kHeadsOutside : Order::kHeadsInside;
    AttentionTensors t(c, static_cast<std::uint64_t>(seed));
    t.v = t.k.slice(3, 0, c.v_head_dim);
    AttentionTensors copied = t;
    const Tensor copy = contiguous(t.v);
    copied.v = copy;
    const Result latent = run(t, c.options(), {.lse = true});
    const Result expected = run(copied, c.options(), {.lse = true});
    ASSERT_TRUE(same_bits(latent.out, expected.out));
    ASSERT_TRUE(same_bits(*latent.aux.lse, *expected.aux.lse));
  }
}

}  // namespace
}  // namespace quire::testing
