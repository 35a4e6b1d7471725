// Gradients of rows whose lse is so large that rounding it would show in their weights. Scores are
// exact numbers, so that the f64 reference has the same ones.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "reference/attention.h"
#include "tests/support/attention_backward.h"
#include "tests/support/attention_case.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kQueries = 70, kKeys = 150, kDim = 16;

struct LargeCase {
  double offset = 0;        // of all scores, by the score mod
  bool by_channel = false;  // 2^20 more, by the first channel of q and k
  DType dtype = DType::f32;
  std::optional<double> sink = {};  // above the offset
  bool lse_with_sinks = false;
};

// Small integers: with a scale of 1/4 scores are multiples of 1/4.
Tensor integers(const Shape& shape, DType dtype, std::mt19937_64& random, double first_channel) {
  Tensor made(shape, DType::f64);
  for (std::int64_t i = 0; i < made.numel(); ++i)
    made.data_as<double>()[i] =
        i % kDim == 0 && first_channel != 0 ? first_channel : static_cast<double>(random() % 5) - 2;
  return made.to(dtype);
}

struct LargeTensors {
  Tensor q, k, v, out, lse, d_out, d_lse;

  LargeTensors(const LargeCase& c, AttentionOptions options) {
    std::mt19937_64 random(7);
    q = integers({1, kHeads, kQueries, kDim}, c.dtype, random, c.by_channel ? 4096 : 0);
    k = integers({1, kKvHeads, kKeys, kDim}, c.dtype, random, c.by_channel ? 1024 : 0);
    v = random_normal({1, kKvHeads, kKeys, kDim}, c.dtype, random);
    AuxOutput aux;
    options.return_aux = {.lse = true};
    options.aux = &aux;
    out = flex_attention(q, k, v, options);
    lse = *aux.lse;
    d_out = random_normal(out.shape(), c.dtype, random);
    d_lse = random_normal(lse.shape(), lse.dtype(), random);
  }

  BackwardInputs inputs() const {
    return {.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_lse = d_lse};
  }
};

AttentionOptions options_of(const LargeCase& c) {
  AttentionOptions options{.mask_mod = MaskMod::parse("q_idx + 80 >= kv_idx"), .enable_gqa = true};
  if (c.offset != 0) options.score_mod = ScoreMod::parse("score + " + std::to_string(c.offset));
  if (c.sink.has_value()) {
    Tensor sinks({kHeads}, DType::f64);
    for (std::int64_t h = 0; h < kHeads; ++h) sinks.data_as<double>()[h] = c.offset + *c.sink;
    options.sinks = Buffer(sinks, {.name = "sinks", .wants_gradient = true});
    options.lse_with_sinks = c.lse_with_sinks;
  }
  return options;
}

void expect_near(const Tensor& got, const Tensor& want, double unit, const char* what) {
  double most = 0;
  for (std::int64_t i = 0; i < want.numel(); ++i)
    most = std::max(most, std::abs(want.data_as<double>()[i]));
  EXPECT_LE(largest_error(got.to(DType::f64), want), most * unit) << what;
}

void expect_exact(const LargeCase& c) {
  SCOPED_TRACE("offset " + std::to_string(c.offset) + (c.by_channel ? " by channel" : "") +
               (c.sink ? " sinks" : "") + (c.lse_with_sinks ? " in lse" : ""));
  const AttentionOptions options = options_of(c);
  const LargeTensors t(c, options);
  const AttentionGradients got = flex_attention_backward(t.inputs(), {.forward = options});
  reference::AttentionOptions plain{.score_mod = options.score_mod, .mask_mod = options.mask_mod};
  if (c.sink.has_value()) plain.sinks = std::vector<double>(kHeads, c.offset + *c.sink);
  const reference::AttentionGradients want = reference::attention_backward(
      {t.q, t.k, t.v}, plain, {.out = t.d_out, .lse = t.d_lse, .lse_with_sinks = c.lse_with_sinks});
  const double unit = c.dtype == DType::bf16 ? 0x1p-7 : 0x1p-19;
  expect_near(*got.q, want.q, unit, "q");
  expect_near(*got.k, want.k, unit, "k");
  expect_near(*got.v, want.v, unit, "v");
  if (c.sink.has_value()) expect_near(got.of("sinks"), want.sinks, unit, "sinks");
}

TEST(LargeLse, GradientsAreThoseOfF64) {
  for (const double offset : {200.0, 5e3, 1e6, -1e6})
    for (const DType dtype : {DType::f32, DType::bf16})
      expect_exact({.offset = offset, .dtype = dtype});
  expect_exact({.by_channel = true});
}

TEST(LargeLse, GradientsWithSinksAreThoseOfF64) {
  for (const double sink : {-2.0, 9.0})
    for (const bool in_lse : {false, true})
      expect_exact({.offset = 1e6, .sink = sink, .lse_with_sinks = in_lse});
}

// As a bias of -1e9 on every key does: scores are lost beside it, and all weights are equal.
TEST(LargeLse, RowsWhoseKeysAreAllBiasedAwayWeighThemEqually) {
  for (const char* mod : {"score * 0.0 - 1e9", "score * 0.0 - 3.4e38", "score * 0.0"}) {
    SCOPED_TRACE(mod);
    const AttentionOptions options{.score_mod = ScoreMod::parse(mod), .enable_gqa = true};
    const LargeTensors t({}, options);
    const AttentionGradients got = flex_attention_backward(t.inputs(), {.forward = options});
    const reference::AttentionGradients want = reference::attention_backward(
        {t.q, t.k, t.v}, {.score_mod = ScoreMod::parse("score * 0.0")},
        {.out = t.d_out, .lse = t.d_lse});
    expect_near(*got.v, want.v, 0x1p-19, "v");
  }
}

// A row that sees one key gives it all its weight, whatever scale rounds.
TEST(LargeLse, OneKeyHasAllTheWeight) {
  std::mt19937_64 random(3);
  const Tensor q = random_tensor({1, 1, 5, 13}, DType::f32, random, 1e4),
               k = random_tensor({1, 1, 1, 13}, DType::f32, random, 1e4),
               v = random_normal({1, 1, 1, 13}, DType::f32, random);
  AuxOutput aux;
  const Tensor out = flex_attention(q, k, v, {.return_aux = {.lse = true}, .aux = &aux});
  const Tensor d_out = random_normal(out.shape(), DType::f32, random);
  const AttentionGradients got = flex_attention_backward(
      {.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out}, {});
  const Tensor of_ones = *flex_attention_backward({.q = Tensor({1, 1, 5, 13}, DType::f32),
                                                   .k = k,
                                                   .v = v,
                                                   .out = out,
                                                   .lse = Tensor({1, 1, 5}, DType::f32),
                                                   .d_out = d_out},
                                                  {})
                              .v;
  EXPECT_TRUE(same_bits(*got.v, of_ones));
  for (const Tensor& zero : {*got.q, *got.k})
    for (std::int64_t i = 0; i < zero.numel(); ++i) EXPECT_EQ(zero.data_as<float>()[i], 0);
}

// Whoever divides keys among calls gives each the lse of all: it is not put right by a part's sum.
TEST(LargeLse, OfMoreKeysThanTheCallHasIsTakenAsItIs) {
  const LargeCase c{.offset = 1e6};
  AttentionOptions options = options_of(c);
  options.mask_mod.reset();
  const LargeTensors t(c, options);
  BackwardInputs half = t.inputs();
  half.k = t.k.view().slice(2, 0, kKeys / 2);
  half.v = t.v.view().slice(2, 0, kKeys / 2);
  half.d_lse.reset();
  const AttentionGradients got = flex_attention_backward(half, {.forward = options});
  const reference::AttentionGradients want = reference::attention_backward(
      {t.q, t.k, t.v}, {.score_mod = options.score_mod}, {.out = t.d_out});
  expect_near(*got.v, contiguous(want.v.view().slice(2, 0, kKeys / 2)), 0.05, "v");
}

}  // namespace
}  // namespace quire::testing
