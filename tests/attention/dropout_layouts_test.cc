// Dropout under score mods and masks in every call: the same weights are dropped whether keys are
// dense, jagged, in pages or in a cache, in prefill and in decode; gradients are the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "quire/attend.h"
#include "quire/flex_attention_backward.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "reference/attention.h"
#include "tests/support/attention_backward.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kBatch = 3, kHeads = 4, kKvHeads = 2, kLength = 150, kDim = 24, kPage = 7;
constexpr double kP = 0.3;
constexpr std::uint64_t kSeed = 0x123456789abcdef0;

const MaskMod kRule = MaskMod::parse("(kv_idx <= q_idx) & ((q_idx + kv_idx * 3 + b) % 7 != 2)");

AttentionOptions options_of(const ScoreMod& mod) {
  return {.score_mod = mod, .enable_gqa = true, .dropout_p = kP, .seed = kSeed};
}

struct Case {
  Tensor q, k, v;  // [batch, heads, length, dim]
  ScoreMod mod;

  explicit Case(DType dtype, std::uint64_t seed = 1) : mod(mods::alibi(kHeads)) {
    std::mt19937_64 random(seed);
    q = random_normal({kBatch, kHeads, kLength, kDim}, dtype, random);
    k = random_normal({kBatch, kKvHeads, kLength, kDim}, dtype, random);
    v = random_normal({kBatch, kKvHeads, kLength, kDim}, dtype, random);
  }

  Tensor dense() const {
    AttentionOptions options = options_of(mod);
    options.mask_mod = kRule;
    return flex_attention(q, k, v, options);
  }
};

// [batch, heads, length, dim] as values [batch * length, heads, dim].
Tensor values_of(const Tensor& dense) {
  return contiguous(dense.view().transpose(1, 2))
      .reshape({dense.dim(0) * dense.dim(2), dense.dim(1), dense.dim(3)});
}

const Tensor kOffsets = Tensor::from<std::int64_t>({0, kLength, 2 * kLength, 3 * kLength}, {4});

TEST(DropoutLayouts, JaggedHasTheBitsOfDense) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Case c(dtype);
    const Tensor q = values_of(c.q), k = values_of(c.k), v = values_of(c.v);
    AttentionOptions options = options_of(c.mod);
    options.mask_mod = kRule;
    const Tensor out =
        flex_attention(Jagged{q, kOffsets}, Jagged{k, kOffsets}, Jagged{v, kOffsets}, options);
    EXPECT_TRUE(same_bits(out, values_of(c.dense()))) << dtype_name(dtype);
  }
}

TEST(DropoutLayouts, PagesHaveTheBitsOfDense) {
  const Case c(DType::f32);
  const std::int64_t per_sequence = (kLength + kPage - 1) / kPage, pages = kBatch * per_sequence;
  std::vector<std::int64_t> table(static_cast<std::size_t>(pages));
  std::iota(table.rbegin(), table.rend(), 0);
  Tensor k({pages, kKvHeads, kPage, kDim}, DType::f32), v(k.shape(), DType::f32);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        const std::int64_t page = table[static_cast<std::size_t>(b * per_sequence + i / kPage)];
        for (std::int64_t d = 0; d < kDim; ++d) {
          k.at<float>({page, h, i % kPage, d}) = c.k.at<float>({b, h, i, d});
          v.at<float>({page, h, i % kPage, d}) = c.v.at<float>({b, h, i, d});
        }
      }
    }
  }
  const Tensor page_table = Tensor::from<std::int64_t>(table, {kBatch, per_sequence});
  const Tensor lengths = Tensor::from<std::int64_t>({kLength, kLength, kLength}, {kBatch});
  AttentionOptions options = options_of(c.mod);
  options.mask_mod = kRule;
  EXPECT_TRUE(same_bits(flex_attention(c.q, {k, v, page_table, lengths}, options), c.dense()));
  // One row decodes.
  options.q_begin = {kLength - 1};
  const Tensor last = contiguous(c.q.view().slice(2, kLength - 1, kLength));
  EXPECT_TRUE(same_bits(flex_attention(last, {k, v, page_table, lengths}, options),
                        contiguous(c.dense().view().slice(2, kLength - 1, kLength))));
}

// Decode, a few tokens and a chunk that prefills. Sequences share a prefix, which is walked for all
// of them at once.
TEST(DropoutLayouts, StepsOfACacheHaveTheBitsOfDense) {
  Case c(DType::f32);
  for (const bool is_causal : {false, true}) {
    KVCache cache({.kv_heads = kKvHeads, .head_dim = kDim, .page_size = 16, .n_pages = 64});
    std::vector<NewTokens> all;
    for (std::int64_t b = 0; b < kBatch; ++b) all.push_back({cache.create(), kLength});
    const Tensor k = values_of(c.k), v = values_of(c.v);
    cache.append(all, k.view().unsqueeze(0), v.view().unsqueeze(0));
    AttentionOptions options = options_of(c.mod);
    AttentionOptions dense = options;
    dense.mask_mod = is_causal ? mods::causal() : kRule;
    if (!is_causal) options.mask_mod = kRule;
    const Tensor want = flex_attention(c.q, c.k, c.v, dense);
    for (const std::int64_t count : {1, 5, 70}) {
      std::vector<NewTokens> step = all;
      for (NewTokens& one : step) one.count = count;
      const auto rows = [&](const Tensor& of) {
        return values_of(contiguous(of.view().slice(2, kLength - count, kLength)));
      };
      EXPECT_TRUE(same_bits(attend(cache, 0, step, rows(c.q), options), rows(want)))
          << count << " tokens";
    }
  }
}

TEST(DropoutLayouts, SharedPrefixesDropEachRowsOwn) {
  constexpr std::int64_t kLong = 1500;
  std::mt19937_64 random(3);
  const Tensor k = random_normal({1, 1, kLong, kDim}, DType::f32, random);
  const Tensor q = random_normal({2, 1, 1, kDim}, DType::f32, random);
  KVCache cache({.kv_heads = 1, .head_dim = kDim, .page_size = 16, .n_pages = 128});
  const SequenceId first = cache.create();
  const NewTokens tokens[] = {{first, kLong}};
  const Tensor rows = values_of(k);
  cache.append(tokens, rows.view().unsqueeze(0), rows.view().unsqueeze(0));
  const NewTokens step[] = {{first, 1}, {cache.fork(first), 1}};
  const AttentionOptions options{.dropout_p = kP, .seed = kSeed};
  const Tensor got = attend(cache, 0, step, values_of(q), options);
  AttentionOptions dense = options;
  dense.mask_mod = mods::causal();
  dense.q_begin = {kLong - 1};
  EXPECT_TRUE(same_bits(got, values_of(flex_attention(q, k, k, dense))));
  EXPECT_FALSE(same_bits(got.view().slice(0, 0, 1), got.view().slice(0, 1, 2)));
}

// Every layout and entry point agrees with dense; dense agrees with the reference.
TEST(DropoutLayouts, GradientsAreTheReferences) {
  std::mt19937_64 random(5);
  Case c(DType::f64, 5);
  const Buffer slopes(random_normal({kHeads}, DType::f64, random),
                      {.name = "slopes", .wants_gradient = true});
  c.mod = ScoreMod([&](auto score, auto, auto h, auto q_idx, auto kv_idx) {
    return tanh(score) * 3.0 + slopes[h] * (kv_idx - q_idx) * 0.01;
  });
  AttentionOptions options = options_of(c.mod);
  options.mask_mod = kRule;
  AuxOutput aux;
  AttentionOptions forward = options;
  forward.return_aux.lse = true;
  forward.aux = &aux;
  const Tensor out = flex_attention(c.q, c.k, c.v, forward);
  const Tensor d_out = random_normal(out.shape(), DType::f64, random);
  const Tensor d_lse = random_normal(aux.lse->shape(), DType::f64, random);
  const AttentionGradients got = flex_attention_backward(
      {.q = c.q, .k = c.k, .v = c.v, .out = out, .lse = *aux.lse, .d_out = d_out, .d_lse = d_lse},
      {.forward = options});
  const reference::AttentionOptions exact{
      .score_mod = c.mod, .mask_mod = kRule, .dropout = {kP, kSeed}};
  const reference::AttentionGradients want =
      reference::attention_backward({c.q, c.k, c.v}, exact, {d_out, d_lse});
  const auto near = [](const Tensor& a, const Tensor& b) {
    double most = 0;
    for (std::int64_t i = 0; i < a.numel(); ++i)
      most = std::max(most, std::abs(a.data_as<double>()[i] - b.data_as<double>()[i]));
    return most;
  };
  EXPECT_LT(near(out, reference::attention({c.q, c.k, c.v}, exact).out), 1e-12);
  EXPECT_LT(near(*got.q, want.q), 1e-11);
  EXPECT_LT(near(*got.k, want.k), 1e-11);
  EXPECT_LT(near(*got.v, want.v), 1e-11);
  EXPECT_LT(near(got.of("slopes"), want.of("slopes")), 1e-9);

  // The same in a jagged batch, to the bit.
  const Tensor q = values_of(c.q), k = values_of(c.k), v = values_of(c.v), o = values_of(out),
               d = values_of(d_out);
  const auto numbers = [](const Tensor& of) {
    return contiguous(of.view().transpose(1, 2)).reshape({kBatch * kLength, kHeads});
  };
  const Tensor lse = numbers(*aux.lse), dl = numbers(d_lse);
  const AttentionGradients jagged = flex_attention_backward(JaggedBackwardInputs{.q = {q, kOffsets},
                                                                                 .k = {k, kOffsets},
                                                                                 .v = {v, kOffsets},
                                                                                 .out = o,
                                                                                 .lse = lse,
                                                                                 .d_out = d,
                                                                                 .d_lse = dl},
                                                            {.forward = options});
  EXPECT_TRUE(same_bits(*jagged.q, values_of(*got.q)));
  EXPECT_TRUE(same_bits(*jagged.k, values_of(*got.k)));
  EXPECT_TRUE(same_bits(*jagged.v, values_of(*got.v)));
}

TEST(DropoutLayouts, ProbabilitiesOutsideAreRefused) {
  const Case c(DType::f32);
  const Tensor lse({kBatch, kHeads, kLength}, DType::f32);
  AttentionOptions options = options_of(c.mod);
  options.dropout_p = 1.5;
  expect_error(ErrorKind::value, "[flex_attention] dropout_p must be in 0..1; got 1.5",
               [&] { (void)flex_attention(c.q, c.k, c.v, options); });
  options.dropout_p = -0.5;
  expect_error(ErrorKind::value, "[flex_attention_backward] dropout_p must be in 0..1; got -0.5",
               [&] {
                 (void)flex_attention_backward(
                     {.q = c.q, .k = c.k, .v = c.v, .out = c.q, .lse = lse, .d_out = c.q},
                     {.forward = options});
               });
  KVCache cache({.kv_heads = kKvHeads, .head_dim = kDim, .n_pages = 4});
  const NewTokens step[] = {{cache.create(), 0}};
  options.dropout_p = std::numeric_limits<double>::quiet_NaN();
  expect_error(ErrorKind::value, "[attend] dropout_p must be in 0..1; got nan", [&] {
    (void)attend(cache, 0, step, Tensor({0, kHeads, kDim}, DType::f32), options);
  });
}

}  // namespace
}  // namespace quire::testing
