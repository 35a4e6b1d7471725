// Sinks, weights by a formula and rotation on read: against the f64 reference, forward and
// backward, and the same bits whether keys are dense, jagged, in pages or in a cache, in prefill
// and decode.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "quire/attend.h"
#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "reference/attention.h"
#include "tests/support/attention_backward.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Hook {
  kSinks,
  kSinksInLse,
  kSigmoid,      // with a learnt bias
  kReluSum,      // relu(score) + 0.01, divided by the sum
  kIdentity,     // the weight is the score
  kRopeHalves,   // all dims
  kRopePairs,    // some dims, interleaved
  kRopeTables,   // cos and sin of the caller's, bf16
  kRopeAndSink,  // two at once
};
constexpr Hook kHooks[] = {Hook::kSinks,     Hook::kSinksInLse, Hook::kSigmoid,
                           Hook::kReluSum,   Hook::kIdentity,   Hook::kRopeHalves,
                           Hook::kRopePairs, Hook::kRopeTables, Hook::kRopeAndSink};

bool is_weight(Hook hook) {
  return hook == Hook::kSigmoid || hook == Hook::kReluSum || hook == Hook::kIdentity;
}

std::vector<double> doubles(const Tensor& tensor) {
  const Tensor wide = tensor.to(DType::f64);
  return {wide.data_as<double>(), wide.data_as<double>() + wide.numel()};
}

// Sets a hook in the options of both. `heads`, `dims` and `positions` are the call's.
void set(Hook hook, std::int64_t heads, std::int64_t dims, std::int64_t positions,
         std::mt19937_64& random, AttentionOptions& ours, reference::AttentionOptions& exact) {
  if (hook == Hook::kSinks || hook == Hook::kSinksInLse || hook == Hook::kRopeAndSink) {
    const Tensor sinks = random_normal({heads}, DType::bf16, random);
    ours.sinks = Buffer(sinks, {.name = "sinks", .wants_gradient = true});
    ours.lse_with_sinks = hook == Hook::kSinksInLse;
    exact.sinks = doubles(sinks);
  }
  if (hook == Hook::kSigmoid) {
    const Buffer bias(random_normal({heads}, DType::f64, random),
                      {.name = "bias", .wants_gradient = true});
    ours.weight_mod = ScoreMod(
        [&](auto score, auto, auto h, auto, auto) { return sigmoid(score * 2.0 + bias[h]); });
  }
  if (hook == Hook::kReluSum) {
    ours.weight_mod = ScoreMod::parse("relu(score) + 0.01");
    ours.normalize = Normalize::kSum;
    exact.normalize = true;
  }
  if (hook == Hook::kIdentity) ours.weight_mod = ScoreMod::parse("score");
  exact.weight_mod = ours.weight_mod;
  const std::int64_t even = dims / 2 * 2;
  if (hook == Hook::kRopeHalves || hook == Hook::kRopeAndSink)
    ours.rope = Rope{.theta = 1000, .dims = even};
  if (hook == Hook::kRopePairs)
    ours.rope = Rope{.dims = std::max<std::int64_t>(2, even - 2), .interleaved = true};
  if (hook == Hook::kRopeTables) {
    ours.rope = Rope{.cos = Buffer(random_normal({positions, even / 2}, DType::bf16, random)),
                     .sin = Buffer(random_normal({positions, even / 2}, DType::f32, random)),
                     .dims = even};
  }
  exact.rope = ours.rope;
}

struct Case : AttentionCase {
  Hook hook = Hook::kSinks;
  AttentionOptions ours;
  reference::AttentionOptions exact;
};

Case random_case(Hook hook, std::uint64_t seed) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  Case c;
  c.hook = hook;
  c.batch = 1 + below(2);
  c.kv_heads = 1 + below(2);
  c.q_heads = c.kv_heads * (1 + below(3));
  c.q_len = seed % 2 == 0 ? 1 + below(6) : 20 + below(120);
  c.kv_len = seed % 3 == 0 ? 1100 + below(1200) : 1 + below(300);
  c.head_dim = 2 + below(70);
  c.v_head_dim = 1 + below(70);
  c.q_dtype = c.k_dtype = c.v_dtype = kTypes[below(4)];
  if (below(4) == 0) c.k_dtype = DType::f32;
  c.order = static_cast<Order>(below(3));
  c.q_begin = below(2) == 0 ? 0 : below(1500);
  if (below(2) == 0)
    c.score_mod = ScoreMod::parse("score + 0.01 * (kv_idx % 7) - 0.02 * (q_idx % 5)");
  if (below(2) == 0) c.mask_mod = MaskMod::parse("(q_idx * 3 + kv_idx + h) % 4 != 1");
  if (below(4) == 0) c.mask_mod = MaskMod::parse("q_idx % 3 != 0");  // rows that see nothing
  c.block_size = {16, 30};
  c.ours = c.options();
  c.exact = {
      .score_mod = c.score_mod, .mask_mod = c.mask_mod, .scale = c.scale, .q_begin = {c.q_begin}};
  set(hook, c.q_heads, c.head_dim, std::max(c.kv_len, c.q_begin + c.q_len), random, c.ours,
      c.exact);
  return c;
}

double unit_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
}

double largest(const Tensor& values) {
  double most = 0;
  for (const double x : doubles(values))
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most;
}

// Errors relative to the largest number: rounding of the result, and of what is added up.
void expect_near(const Tensor& got, const Tensor& want, double unit, const std::string& what) {
  const double most = std::max(largest(want), 1e-3);
  EXPECT_LE(largest_error(got.to(DType::f64), want), most * unit) << what;
}

class Hooks : public ::testing::TestWithParam<Hook> {};

TEST_P(Hooks, AreTheReferences) {
  FewerIfEmulated fewer(5);
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    if (fewer.leaves_out()) continue;
    const Case c = random_case(GetParam(), seed);
    const AttentionTensors t(c, seed);
    AttentionOptions options = c.ours;
    AuxOutput aux;
    options.return_aux = {.lse = true, .max_scores = !is_weight(c.hook)};
    options.aux = &aux;
    const Tensor out = flex_attention(t.q, t.k, t.v, options);
    const reference::AttentionOutput want = reference::attention({t.q, t.k, t.v}, c.exact);
    const bool is_f64 = aux.lse->dtype() == DType::f64;
    const bool is_bf16 = c.q_dtype == DType::bf16 && c.k_dtype == DType::bf16;
    const double unit = is_f64 ? 1e-11 : 2e-5;
    const std::string what = c.to_string() + " seed " + std::to_string(seed);
    expect_near(out, want.out, unit + unit_of(c.q_dtype) + (is_bf16 ? 0x1p-7 : 0), what);
    const Tensor& lse = options.lse_with_sinks ? want.lse_with_sinks : want.lse;
    expect_near(*aux.lse, lse, unit + (is_bf16 ? 1e-4 : 0), what);
    if (!is_weight(c.hook)) expect_near(*aux.max_scores, want.max_scores, unit, what);
  }
}

TEST_P(Hooks, GradientsAreTheReferences) {
  FewerIfEmulated fewer(4);
  for (std::uint64_t seed = 1; seed <= 9; ++seed) {
    if (fewer.leaves_out()) continue;
    Case c = random_case(GetParam(), seed);
    c.kv_len = std::min<std::int64_t>(c.kv_len, 450);
    c.mask_mod.reset();
    if (seed % 2 == 0) c.mask_mod = MaskMod::parse("(kv_idx <= q_idx + 3) & (q_idx % 7 != 2)");
    const bool in_f32 = seed % 4 == 0;
    c.q_dtype = c.k_dtype = c.v_dtype = in_f32 ? DType::f32 : DType::f64;
    std::mt19937_64 random(seed + 100);
    c.ours = c.options();
    c.exact = {.score_mod = c.score_mod, .mask_mod = c.mask_mod, .q_begin = {c.q_begin}};
    set(c.hook, c.q_heads, c.head_dim, c.q_begin + 2500, random, c.ours, c.exact);
    const AttentionTensors t(c, seed);
    AttentionOptions options = c.ours;
    if (seed % 3 == 0) {
      options.dropout_p = 0.3;
      options.seed = 17;
      c.exact.dropout = {0.3, 17};
    }
    AuxOutput aux;
    options.return_aux = {.lse = true};
    options.aux = &aux;
    const Tensor out = flex_attention(t.q, t.k, t.v, options);
    const Tensor d_out = random_normal(out.shape(), out.dtype(), random);
    const Tensor d_lse = random_normal(aux.lse->shape(), out.dtype(), random);
    const AttentionGradients got = flex_attention_backward(
        {.q = t.q, .k = t.k, .v = t.v, .out = out, .lse = *aux.lse, .d_out = d_out, .d_lse = d_lse},
        {.forward = options});
    const reference::AttentionGradients want = reference::attention_backward(
        {t.q, t.k, t.v}, c.exact,
        {.out = d_out, .lse = d_lse, .lse_with_sinks = options.lse_with_sinks});
    const double unit = in_f32 ? 4e-5 : 1e-10;
    const std::string what = c.to_string() + " seed " + std::to_string(seed);
    expect_near(*got.q, want.q, unit, "q " + what);
    expect_near(*got.k, want.k, unit, "k " + what);
    expect_near(*got.v, want.v, unit, "v " + what);
    if (options.sinks)
      expect_near(got.of("sinks"), want.sinks, unit + 0x1p-8, "sinks " + what);  // bf16
    if (c.hook == Hook::kSigmoid)
      expect_near(got.of("bias"), want.of("bias"), unit, "bias " + what);
  }
}

constexpr std::int64_t kBatch = 3, kHeads = 4, kKvHeads = 2, kLength = 1150, kDim = 24, kPage = 7;

// [batch, heads, length, dim] as values [batch * length, heads, dim].
Tensor values_of(const Tensor& dense) {
  return contiguous(dense.view().transpose(1, 2))
      .reshape({dense.dim(0) * dense.dim(2), dense.dim(1), dense.dim(3)});
}

TEST_P(Hooks, EveryLayoutHasTheBitsOfDense) {
  const Hook hook = GetParam();
  FewerIfEmulated fewer(3, static_cast<int>(hook));
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    if (fewer.leaves_out()) continue;
    std::mt19937_64 random(9);
    const Tensor q = random_normal({kBatch, kHeads, kLength, kDim}, dtype, random);
    const Tensor k = random_normal({kBatch, kKvHeads, kLength, kDim}, dtype, random);
    const Tensor v = random_normal({kBatch, kKvHeads, kLength, kDim}, dtype, random);
    AttentionOptions options{.score_mod = mods::alibi(kHeads), .mask_mod = mods::causal()};
    options.enable_gqa = true;
    reference::AttentionOptions unused;
    set(hook, kHeads, kDim, kLength, random, options, unused);
    const Tensor want = flex_attention(q, k, v, options);
    const Tensor offsets = Tensor::from<std::int64_t>({0, kLength, 2 * kLength, 3 * kLength}, {4});
    const Tensor jq = values_of(q), jk = values_of(k), jv = values_of(v);
    EXPECT_TRUE(same_bits(
        flex_attention(Jagged{jq, offsets}, Jagged{jk, offsets}, Jagged{jv, offsets}, options),
        values_of(want)))
        << "jagged " << dtype_name(dtype);
    KVCache cache({.kv_heads = kKvHeads,
                   .head_dim = kDim,
                   .dtype = dtype,
                   .page_size = kPage,
                   .n_pages = kBatch * (kLength / kPage + 1)});
    std::vector<NewTokens> step;
    for (std::int64_t b = 0; b < kBatch; ++b) step.push_back({cache.create(), kLength});
    cache.append(step, jk.view().unsqueeze(0), jv.view().unsqueeze(0));
    AttentionOptions of_step = options;
    of_step.mask_mod.reset();
    for (const std::int64_t count : {1, 3, 100}) {
      for (NewTokens& one : step) one.count = count;
      const auto last = [&](const Tensor& of) {
        return values_of(contiguous(of.view().slice(2, kLength - count, kLength)));
      };
      EXPECT_TRUE(same_bits(attend(cache, 0, step, last(q), of_step), last(want)))
          << count << " tokens " << dtype_name(dtype);
    }
    // The pages of the same keys, through a table.
    const std::int64_t per_sequence = (kLength + kPage - 1) / kPage, pages = kBatch * per_sequence;
    std::vector<std::int64_t> table(static_cast<std::size_t>(pages));
    std::iota(table.rbegin(), table.rend(), 0);
    Tensor pk({pages, kKvHeads, kPage, kDim}, dtype), pv(pk.shape(), dtype);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        const std::int64_t page = table[static_cast<std::size_t>(b * per_sequence + i / kPage)];
        const auto move = [&](const Tensor& from, Tensor& to) {
          const ConstTensorView row = from.view().select(0, b).select(1, i);
          const TensorView place = to.view().select(0, page).select(1, i % kPage);
          const auto bytes = static_cast<std::size_t>(kDim) * dtype_size(dtype);
          for (std::int64_t h = 0; h < kKvHeads; ++h)
            std::memcpy(place.select(0, h).data(), row.select(0, h).data(), bytes);
        };
        move(k, pk);
        move(v, pv);
      }
    }
    const Tensor page_table = Tensor::from<std::int64_t>(table, {kBatch, per_sequence});
    const Tensor lengths = Tensor::from<std::int64_t>({kLength, kLength, kLength}, {kBatch});
    EXPECT_TRUE(same_bits(flex_attention(q, {pk, pv, page_table, lengths}, options), want))
        << "paged " << dtype_name(dtype);
    // One row alone, in decode.
    AttentionOptions one_row = options;
    one_row.q_begin = {700};
    EXPECT_TRUE(same_bits(flex_attention(contiguous(q.view().slice(2, 700, 701)), k, v, one_row),
                          contiguous(want.view().slice(2, 700, 701))))
        << "one row " << dtype_name(dtype);
  }
}

TEST_P(Hooks, GradientsOfJaggedHaveTheBitsOfDense) {
  std::mt19937_64 random(9);
  const DType dtype = DType::f32;
  constexpr std::int64_t kShort = 150;
  const Tensor q = random_normal({2, kHeads, kShort, kDim}, dtype, random);
  const Tensor k = random_normal({2, kKvHeads, kShort, kDim}, dtype, random);
  const Tensor d_out = random_normal({2, kHeads, kShort, kDim}, dtype, random);
  AttentionOptions options{.mask_mod = mods::causal(), .enable_gqa = true};
  reference::AttentionOptions unused;
  set(GetParam(), kHeads, kDim, kShort, random, options, unused);
  AuxOutput aux;
  options.return_aux = {.lse = true};
  options.aux = &aux;
  const Tensor out = flex_attention(q, k, k, options);
  const AttentionGradients want = flex_attention_backward(
      {.q = q, .k = k, .v = k, .out = out, .lse = *aux.lse, .d_out = d_out}, {.forward = options});
  const Tensor offsets = Tensor::from<std::int64_t>({0, kShort, 2 * kShort}, {3});
  const Tensor jq = values_of(q), jk = values_of(k), jo = values_of(out), jd = values_of(d_out);
  const Tensor lse = contiguous(aux.lse->view().transpose(1, 2)).reshape({2 * kShort, kHeads});
  const AttentionGradients got = flex_attention_backward(JaggedBackwardInputs{.q = {jq, offsets},
                                                                              .k = {jk, offsets},
                                                                              .v = {jk, offsets},
                                                                              .out = jo,
                                                                              .lse = lse,
                                                                              .d_out = jd},
                                                         {.forward = options});
  EXPECT_TRUE(same_bits(*got.q, values_of(*want.q)));
  EXPECT_TRUE(same_bits(*got.k, values_of(*want.k)));
  EXPECT_TRUE(same_bits(*got.v, values_of(*want.v)));
  ASSERT_EQ(got.buffers.size(), want.buffers.size());
  for (std::size_t i = 0; i < got.buffers.size(); ++i)
    EXPECT_TRUE(same_bits(got.buffers[i].gradient, want.buffers[i].gradient));
}

// Forward and backward; keys nobody sees hold NaN.
TEST_P(Hooks, BitsDependNeitherOnTheIsaNorOnHiddenKeys) {
  std::mt19937_64 random(11);
  const Tensor q = random_normal({1, kHeads, 90, 37}, DType::f32, random);
  Tensor k = random_normal({1, kKvHeads, 1100, 37}, DType::f32, random);
  const Tensor d_out = random_normal({1, kHeads, 90, 37}, DType::f32, random);
  AttentionOptions options{.mask_mod = MaskMod::parse("kv_idx % 3 != 1"), .enable_gqa = true};
  reference::AttentionOptions unused;
  set(GetParam(), kHeads, 37, 1100, random, options, unused);
  AuxOutput aux;
  options.return_aux = {.lse = true};
  options.aux = &aux;
  const Tensor want = flex_attention(q, k, k, options);
  const Tensor lse = *aux.lse;
  const auto gradients = [&] {
    return flex_attention_backward(
        {.q = q, .k = k, .v = k, .out = want, .lse = lse, .d_out = d_out}, {.forward = options});
  };
  const AttentionGradients d = gradients();
  for (std::int64_t h = 0; h < kKvHeads; ++h)
    for (std::int64_t i = 1; i < 1100; i += 3)
      for (std::int64_t e = 0; e < 37; ++e)
        k.at<float>({0, h, i, e}) = std::numeric_limits<float>::quiet_NaN();
  for (const Isa isa : available_isas()) {
    const ScopedIsa scoped(isa);
    EXPECT_TRUE(same_bits(flex_attention(q, k, k, options), want)) << isa_name(isa);
    EXPECT_TRUE(same_bits(*aux.lse, lse)) << isa_name(isa);
    AttentionOptions few = options;
    EXPECT_TRUE(same_bits(flex_attention(contiguous(q.view().slice(2, 0, 2)), k, k, few),
                          contiguous(want.view().slice(2, 0, 2))))
        << isa_name(isa);
    const AttentionGradients there = gradients();
    EXPECT_TRUE(same_bits(*there.q, *d.q)) << isa_name(isa);
    EXPECT_TRUE(same_bits(*there.k, *d.k)) << isa_name(isa);
    EXPECT_TRUE(same_bits(*there.v, *d.v)) << isa_name(isa);
    for (std::size_t i = 0; i < d.buffers.size(); ++i)
      EXPECT_TRUE(same_bits(there.buffers[i].gradient, d.buffers[i].gradient)) << isa_name(isa);
  }
}

std::string name_of(const ::testing::TestParamInfo<Hook>& of) {
  constexpr const char* kNames[] = {"Sinks",     "SinksInLse", "Sigmoid",
                                    "ReluSum",   "Identity",   "RopeHalves",
                                    "RopePairs", "RopeTables", "RopeAndSink"};
  return kNames[static_cast<int>(of.param)];
}
INSTANTIATE_TEST_SUITE_P(All, Hooks, ::testing::ValuesIn(kHooks), name_of);

struct Small {
  Tensor q, k;
  Small() {
    std::mt19937_64 random(3);
    q = random_normal({1, 2, 70, 16}, DType::f32, random);
    k = random_normal({1, 2, 70, 16}, DType::f32, random);
  }
  Tensor run(const AttentionOptions& options) const { return flex_attention(q, k, k, options); }
};

Buffer sinks_of(double a, double b) { return Buffer(Tensor::from<double>({a, b}, {2})); }

TEST(Sinks, AtMinusInfinityChangeNoBit) {
  const Small s;
  const AttentionOptions options{.sinks = sinks_of(-kInf, -kInf)};
  EXPECT_TRUE(same_bits(s.run(options), s.run({})));
}

TEST(Sinks, ThatOutweighEverythingLeaveNothing) {
  const Small s;
  AttentionOptions options{.sinks = sinks_of(kInf, 1000)};
  AuxOutput aux;
  options.return_aux = {.lse = true};
  options.aux = &aux;
  const Tensor out = s.run(options);
  for (const float x : floats(out)) EXPECT_EQ(x, 0);
  for (const float x : floats(*aux.lse)) EXPECT_TRUE(std::isfinite(x));
}

TEST(Sinks, AreReadAgainAtEveryRun) {
  const Small s;
  Tensor sinks = Tensor::from<float>({0.5f, -1}, {2});
  AttentionPlan plan(AttentionShape::of(s.q, s.k, s.k),
                     AttentionOptions{.sinks = Buffer::borrow(sinks.view())});
  Tensor out(s.q.shape(), DType::f32);
  plan.run(s.q, s.k, s.k, {.out = out.view()});
  EXPECT_TRUE(same_bits(out, s.run({.sinks = sinks_of(0.5, -1)})));
  sinks.data_as<float>()[0] = 3;
  plan.run(s.q, s.k, s.k, {.out = out.view()});
  EXPECT_TRUE(same_bits(out, s.run({.sinks = sinks_of(3, -1)})));
}

TEST(Sinks, OfRowsThatSeeNothing) {
  const Small s;
  AttentionOptions options{.mask_mod = MaskMod::parse("q_idx > 3"), .sinks = sinks_of(2, -1)};
  options.lse_with_sinks = true;
  AuxOutput aux;
  options.return_aux = {.lse = true};
  options.aux = &aux;
  const Tensor out = s.run(options);
  EXPECT_EQ(out.at<float>({0, 0, 2, 5}), 0);
  EXPECT_EQ(aux.lse->at<float>({0, 0, 2}), 2);
  EXPECT_EQ(aux.lse->at<float>({0, 1, 0}), -1);
}

TEST(HookErrors, NameWhatIsWrong) {
  const Small s;
  const auto refused = [&](const AttentionOptions& options, const std::string& text) {
    expect_error(ErrorKind::value, text, [&] { (void)s.run(options); });
  };
  refused({.sinks = Buffer(Tensor({3}, DType::f32))},
          "[flex_attention] sinks must be one number per query head, [2]; got [3]");
  refused({.lse_with_sinks = true},
          "[flex_attention] lse_with_sinks is set, and there are no sinks");
  expect_error(ErrorKind::type, "[flex_attention] sinks must be f32, f64, bf16 or f16; got i64",
               [&] { (void)s.run({.sinks = Buffer(Tensor({2}, DType::i64))}); });
  refused({.normalize = Normalize::kSum},
          "[flex_attention] normalize is for weight_mod, and there is none");
  refused({.sinks = sinks_of(0, 0), .weight_mod = ScoreMod::parse("score")},
          "[flex_attention] give sinks or weight_mod, not both: a sink is part of a softmax");
  AuxOutput aux;
  refused({.weight_mod = ScoreMod::parse("score"), .return_aux = {.max_scores = true}, .aux = &aux},
          "[flex_attention] there are no max_scores with weight_mod");
  refused({.rope = Rope{.dims = 3}},
          "[flex_attention] rope must rotate an even number of dims, at most the head dim, 16; got "
          "3");
  refused({.rope = Rope{.dims = 18}},
          "[flex_attention] rope must rotate an even number of dims, at most the head dim, 16; got "
          "18");
  refused({.rope = Rope{.theta = 0}}, "[flex_attention] theta of rope must be positive; got 0");
  refused({.rope = Rope{.cos = Buffer(Tensor({70, 8}, DType::f32))}},
          "[flex_attention] rope needs cos and sin, or neither");
  const Buffer table(Tensor({70, 8}, DType::f32)), less(Tensor({69, 8}, DType::f32)),
      other(Tensor({70, 16}, DType::f32));
  refused({.rope = Rope{.cos = table, .sin = less}},
          "[flex_attention] sin of rope must have a row for each of the positions 0..69; got 69");
  refused({.rope = Rope{.cos = other, .sin = table}},
          "[flex_attention] cos of rope must be [positions, 8], half the dims; got [70, 16]");
}

// Decode turns keys of 32, 64, 96 and 128 dims in registers, those of others, like prefill, when it
// copies them. Every third key is hidden and holds NaN.
TEST(Rope, OneRowHasTheBitsOfManyWhateverTheDims) {
  constexpr std::int64_t kRows = 70, kKeys = 600;
  for (const std::int64_t dims : {32, 64, 80, 96, 128, 160}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t group : {1, 3, 8}) {
        SCOPED_TRACE(std::to_string(dims) + " dims, group " + std::to_string(group) + " " +
                     std::string(dtype_name(dtype)));
        std::mt19937_64 random(static_cast<std::uint64_t>(dims));
        const Tensor q = random_normal({1, 2 * group, kRows, dims}, dtype, random);
        Tensor wide = random_normal({1, 2, kKeys, dims}, DType::f64, random);
        const Tensor v = random_normal({1, 2, kKeys, dims}, dtype, random);
        for (std::int64_t h = 0; h < 2; ++h)
          for (std::int64_t i = 1; i < kKeys; i += 3)
            for (std::int64_t d = 0; d < dims; ++d)
              wide.at<double>({0, h, i, d}) = std::numeric_limits<double>::quiet_NaN();
        const Tensor k = wide.to(dtype);
        AttentionOptions options{
            .mask_mod = MaskMod::parse("q_idx >= kv_idx and (kv_idx % 3 != 1)"),
            .enable_gqa = true,
            .q_begin = {kKeys - kRows},
            .rope = Rope{}};
        const Tensor want = flex_attention(q, k, v, options);
        for (const Isa isa : available_isas()) {
          const ScopedIsa scoped(isa);
          options.q_begin = {kKeys - 1};
          EXPECT_TRUE(same_bits(
              flex_attention(contiguous(q.view().slice(2, kRows - 1, kRows)), k, v, options),
              contiguous(want.view().slice(2, kRows - 1, kRows))))
              << isa_name(isa);
          // Rows of a stride, which are gathered.
          const Tensor apart = contiguous(k.view().transpose(2, 3));
          EXPECT_TRUE(same_bits(flex_attention(q.view().slice(2, kRows - 1, kRows),
                                               apart.view().transpose(2, 3), v, options),
                                want.view().slice(2, kRows - 1, kRows)))
              << isa_name(isa);
        }
      }
    }
  }
}

TEST(Rope, KeysThatStayWhereTheyWereAreRotatedByTheirPlace) {
  // Scores depend on differences of positions alone.
  const Small s;
  const AttentionOptions at{.q_begin = {5}, .rope = Rope{}};
  const Tensor one = flex_attention(s.q.view().slice(2, 0, 1), s.k, s.k, at);
  AttentionOptions later = at;
  later.q_begin = {6};
  Tensor shifted({1, 2, 71, 16}, DType::f32);
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 70; ++i)
      for (std::int64_t d = 0; d < 16; ++d)
        shifted.at<float>({0, h, i + 1, d}) = s.k.at<float>({0, h, i, d});
  later.mask_mod = MaskMod::parse("kv_idx > 0");
  const Tensor two = flex_attention(s.q.view().slice(2, 0, 1), shifted, shifted, later);
  EXPECT_LE(largest_error(one.to(DType::f64), two.to(DType::f64)), 1e-5);
}

}  // namespace
}  // namespace quire::testing
