// flex_attention against the f64 reference: shapes, dtypes, strides, mods, masks, corners, errors.
#include "quire/flex_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quire/mods.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One rounding to the output's type comes on top.
double output_rounding(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

void expect_as_good_as_naive(const AttentionCase& c, std::uint64_t seed = 1) {
  const AttentionTensors tensors(c, seed);
  const AttentionValues got = ours(c, tensors), want = exact(c, tensors), plain = naive(c, tensors);
  // bf16 products round the weights: an error of a unit of bf16 relative to values up to 1.
  const bool pairs =
      c.q_dtype == DType::bf16 && c.k_dtype == DType::bf16 && c.v_dtype == DType::bf16;
  const double extra = output_rounding(c.q_dtype) + (pairs ? 0x1p-8 : 0);
  EXPECT_LE(largest_error(got.out, want.out), 2 * largest_error(plain.out, want.out) + extra)
      << c.to_string();
  const double lse_extra = pairs ? 1e-5 : 1e-6;
  EXPECT_LE(largest_error(got.lse, want.lse), 2 * largest_error(plain.lse, want.lse) + lse_extra)
      << c.to_string();
  EXPECT_LE(largest_error(got.max_scores, want.max_scores),
            2 * largest_error(plain.max_scores, want.max_scores) + lse_extra)
      << c.to_string();
}

TEST(FlexAttention, Lengths) {
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {1, 257}, {113, 203}, {799, 3}, {64, 64}, {65, 1025}, {7, 2050}, {100, 3000}}) {
    for (const bool causal : {false, true}) {
      AttentionCase c{.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = q_len, .kv_len = kv_len};
      if (causal) c.mask_mod = mods::causal();
      expect_as_good_as_naive(c);
    }
  }
}

TEST(FlexAttention, NothingToCompute) {
  for (const auto& [q_len, kv_len] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 5}, {5, 0}, {0, 0}, {200, 0}}) {
    const AttentionCase c{
        .batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = q_len, .kv_len = kv_len};
    const AttentionTensors tensors(c, 1);
    const AttentionValues got = ours(c, tensors);
    EXPECT_EQ(got.out.shape(), (Shape{2, 2, q_len, 16}));
    for (std::int64_t i = 0; i < got.out.numel(); ++i) EXPECT_EQ(got.out.data_as<double>()[i], 0);
    for (std::int64_t i = 0; i < got.lse.numel(); ++i) {
      EXPECT_EQ(got.lse.data_as<double>()[i], -kInf);
      EXPECT_EQ(got.max_scores.data_as<double>()[i], -kInf);
    }
  }
  AttentionCase none{.batch = 0, .q_len = 5, .kv_len = 5};
  EXPECT_EQ(ours(none, AttentionTensors(none, 1)).out.numel(), 0);
  none = {.q_heads = 0, .kv_heads = 0, .q_len = 5, .kv_len = 5};
  EXPECT_EQ(ours(none, AttentionTensors(none, 1)).out.numel(), 0);
}

TEST(FlexAttention, HeadDims) {
  for (const std::int64_t dim : {1, 2, 7, 16, 17, 40, 64, 72, 80, 96, 128, 130, 192, 256, 1024}) {
    for (const std::int64_t v_dim : {dim, std::int64_t{1}, std::int64_t{64}, std::int64_t{130}}) {
      for (const std::int64_t q_len : {1, 3, 70}) {
        expect_as_good_as_naive(
            {.q_len = q_len, .kv_len = 300, .head_dim = dim, .v_head_dim = v_dim});
      }
    }
  }
}

TEST(FlexAttention, GroupsOfHeads) {
  FewerIfEmulated fewer(3);
  for (const std::int64_t group : {1, 2, 7, 32}) {
    for (const std::int64_t q_len : {1, 2, 5, 20, 130}) {
      if (fewer.leaves_out()) continue;
      expect_as_good_as_naive({.batch = 2,
                               .q_heads = 2 * group,
                               .kv_heads = 2,
                               .q_len = q_len,
                               .kv_len = 400,
                               .mask_mod = mods::causal_bottom_right(q_len, 400)});
    }
  }
}

TEST(FlexAttention, DTypesAndOrders) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  FewerIfEmulated fewer(7);
  for (const DType q : kTypes) {
    for (const DType k : kTypes) {
      for (const DType v : kTypes) {
        for (const Order order : {Order::kHeadsOutside, Order::kHeadsInside, Order::kDimOutside}) {
          for (const std::int64_t q_len : {2, 70}) {
            if (fewer.leaves_out()) continue;
            expect_as_good_as_naive({.q_heads = 2,
                                     .kv_heads = 2,
                                     .q_len = q_len,
                                     .kv_len = 300,
                                     .head_dim = 33,
                                     .v_head_dim = 20,
                                     .q_dtype = q,
                                     .k_dtype = k,
                                     .v_dtype = v,
                                     .order = order});
          }
        }
      }
    }
  }
}

TEST(FlexAttention, DoubleIsDouble) {
  for (const std::int64_t q_len : {1, 100}) {
    AttentionCase c{.q_len = q_len,
                    .kv_len = 1500,
                    .head_dim = 64,
                    .v_head_dim = 48,
                    .q_dtype = DType::f64,
                    .k_dtype = DType::f64,
                    .v_dtype = DType::f64,
                    .score_mod = mods::softcap(3)};
    const AttentionTensors tensors(c, 3);
    const AttentionValues got = ours(c, tensors), want = exact(c, tensors);
    EXPECT_LT(largest_error(got.out, want.out), 1e-13);
    EXPECT_LT(largest_error(got.lse, want.lse), 1e-13);
  }
}

TEST(FlexAttention, Mods) {
  const Buffer slopes(std::vector<float>{0.5f, 0.25f, 0.125f}, {.name = "slopes"});
  const Buffer table(std::vector<float>(1200, 0.3f), {.name = "table"});
  std::vector<std::int32_t> ids(600);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 37);
  const std::vector<std::optional<ScoreMod>> scores{
      std::nullopt, mods::alibi(mods::Table(slopes)), mods::softcap(2),
      ScoreMod::parse(
          "score * score - table[kv_idx - q_idx + 599] + tanh(score) * exp(-abs(score))",
          {{"table", table}}),
      ScoreMod::parse("where(kv_idx % 3 == q_idx % 3, -inf, score)")};
  const std::vector<std::optional<MaskMod>> masks{
      std::nullopt,
      mods::causal(),
      mods::sliding_window(50),
      mods::document(ids),
      mods::document(ids) & mods::causal(),
      MaskMod::parse("(q_idx - kv_idx) % 7 == 0"),
      MaskMod::parse("(h == 1) | (kv_idx < 13 * b + 5)"),
      MaskMod::parse("kv_idx > 550")};
  const BlockSize blocks[] = {128, 16, {7, 100}};
  std::size_t i = 0;
  FewerIfEmulated fewer(7);
  for (const auto& score : scores) {
    for (const auto& mask : masks) {
      for (const std::int64_t q_len : {3, 100}) {
        if (fewer.leaves_out()) continue;
        expect_as_good_as_naive({.batch = 2,
                                 .q_heads = 3,
                                 .kv_heads = 1,
                                 .q_len = q_len,
                                 .kv_len = 600,
                                 .score_mod = score,
                                 .mask_mod = mask,
                                 .block_size = blocks[i++ % std::size(blocks)],
                                 .q_begin = 17});
      }
    }
  }
}

TEST(FlexAttention, ScalesOfAnySign) {
  for (const double scale : {0.0, -0.3, 2.0, 1e-8}) {
    for (const std::int64_t q_len : {2, 80}) {
      expect_as_good_as_naive({.q_len = q_len, .kv_len = 700, .scale = scale});
      expect_as_good_as_naive(
          {.q_len = q_len, .kv_len = 700, .mask_mod = mods::causal(), .scale = scale});
    }
  }
}

TEST(FlexAttention, HugeLogits) {
  for (const double size : {1e3, 1e6, 1e9}) {
    for (const std::int64_t q_len : {2, 80}) {
      for (const bool with_mod : {false, true}) {
        AttentionCase c{.q_len = q_len, .kv_len = 2500, .head_dim = 4, .size = std::sqrt(size)};
        if (with_mod) c.score_mod = ScoreMod::parse("score + 1");
        const AttentionTensors tensors(c, 5);
        const AttentionValues got = ours(c, tensors), plain = naive(c, tensors);
        // Weights are nearly 0 or 1, and which is largest is decided in f32: compare with f32.
        EXPECT_LE(largest_error(got.out, plain.out), 0.26) << c.to_string();
        for (std::int64_t i = 0; i < got.out.numel(); ++i)
          EXPECT_TRUE(std::isfinite(got.out.data_as<double>()[i]));
      }
    }
  }
}

TEST(FlexAttention, OneKeyBatchForAll) {
  AttentionCase c{.batch = 3, .q_len = 40, .kv_len = 90, .kv_batch = 1};
  c.mask_mod = MaskMod::parse("kv_idx < 20 * b + 7");
  expect_as_good_as_naive(c);
}

TEST(FlexAttention, BlocksChosenByData) {
  // Two of four key blocks per row; the rule runs in partial ones only.
  const Tensor counts = Tensor::from<std::int32_t>({1, 1}, {1, 1, 2});
  const Tensor partial = Tensor::from<std::int32_t>({2, 0, 1, 3, 0, 1, 2, 3}, {1, 1, 2, 4});
  const Tensor full = Tensor::from<std::int32_t>({3, 0, 1, 2, 2, 0, 1, 3}, {1, 1, 2, 4});
  const MaskMod rule = MaskMod::parse("(q_idx + kv_idx) % 2 == 0");
  const BlockMask mask = BlockMask::from_kv_blocks(
      {counts, partial}, {.full = BlockLists{counts, full}, .block_size = 16, .mask_mod = rule});
  AttentionCase c{.q_len = 32, .kv_len = 64};
  const AttentionTensors tensors(c, 9);
  const Tensor out = flex_attention(tensors.q, tensors.k, tensors.v, {.block_mask = mask});
  c.mask_mod = mask.whole_mask_mod();
  EXPECT_LT(largest_error(out.to(DType::f64), exact(c, tensors).out), 1e-6);
}

// Scores are 0; a row is the mean of the values it sees.
TEST(FlexAttention, NoChannels) {
  for (const auto& [q_len, kv_len] : {std::pair{3, 5}, std::pair{1, 700}, std::pair{90, 300}}) {
    AttentionCase c{.q_heads = 4,
                    .kv_heads = 2,
                    .q_len = q_len,
                    .kv_len = kv_len,
                    .head_dim = 0,
                    .mask_mod = mods::causal()};
    const AttentionTensors tensors(c, 9);
    const BlockMask mask = create_block_mask(mods::causal(), 1, 1, q_len, kv_len);
    for (const std::optional<double> scale : {std::optional<double>(), std::optional<double>(2)}) {
      const Tensor out = flex_attention(tensors.q, tensors.k, tensors.v,
                                        {.block_mask = mask, .scale = scale, .enable_gqa = true});
      EXPECT_LT(largest_error(out.to(DType::f64), exact(c, tensors).out), 1e-6);
    }
  }
}

TEST(FlexAttention, MasksWithMoreEntriesThanTheQueries) {
  const MaskMod rule = MaskMod::parse("q_idx + 8 * h >= kv_idx + 16 * b");
  const AttentionTensors tensors(
      {.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = 70, .kv_len = 70}, 9);
  const auto run = [&](std::int64_t batch, std::int64_t heads) {
    return flex_attention(
        tensors.q, tensors.k, tensors.v,
        {.block_mask = create_block_mask(rule, batch, heads, 70, 70, {.block_size = {16, 16}})});
  };
  const Tensor own = run(2, 3), more = run(5, 4);
  EXPECT_EQ(largest_error(own.to(DType::f64), more.to(DType::f64)), 0);
}

TEST(FlexAttention, Errors) {
  const auto call = [](const Shape& q, const Shape& k, const Shape& v,
                       FlexAttentionOptions options) {
    return [=] {
      flex_attention(Tensor(q, DType::f32), Tensor(k, DType::f32), Tensor(v, DType::f32), options);
    };
  };
  const Shape s{2, 4, 8, 16};
  expect_error(ErrorKind::value,
               "[flex_attention] query, key and value must be [batch, heads, length, dim]; got [8, "
               "16]",
               call({8, 16}, s, s, {}));
  expect_error(ErrorKind::value,
               "[flex_attention] query and key must have the same head dim; got 16 and 32",
               call(s, {2, 4, 8, 32}, s, {}));
  expect_error(ErrorKind::value,
               "[flex_attention] key and value must have the same batch, heads and length; got [2, "
               "4, 8, 16] and [2, 4, 9, 16]",
               call(s, s, {2, 4, 9, 16}, {}));
  expect_error(ErrorKind::value,
               "[flex_attention] query and key must have the same number of heads, or enable_gqa "
               "must be set; got 4 and 2",
               call(s, {2, 2, 8, 16}, {2, 2, 8, 16}, {}));
  expect_error(ErrorKind::value,
               "[flex_attention] q_heads must be a multiple of kv_heads; got 4 and 3",
               call(s, {2, 3, 8, 16}, {2, 3, 8, 16}, {.enable_gqa = true}));
  expect_error(ErrorKind::value,
               "[flex_attention] query and key must have the same batch size, or key must have 1; "
               "got 2 and 3",
               call(s, {3, 4, 8, 16}, {3, 4, 8, 16}, {}));
  expect_error(ErrorKind::value,
               "[flex_attention] a key batch of 1 for a query batch of 2 needs a block mask",
               call(s, {1, 4, 8, 16}, {1, 4, 8, 16}, {}));
  expect_error(ErrorKind::value,
               "[flex_attention] block_mask was created for 9 queries and 8 keys; got 8 and 8. "
               "Make a new one, or take part of it with rows or adjust",
               call(s, s, s, {.block_mask = create_block_mask(mods::causal(), 1, 1, 9, 8)}));
  expect_error(
      ErrorKind::value,
      "[flex_attention] the block mask must have 1 head, or 4 or more, as the query; got 3",
      call(s, s, s, {.block_mask = create_block_mask(MaskMod::parse("h >= 0"), 1, 3, 8, 8)}));
  expect_error(
      ErrorKind::value,
      "[flex_attention] the block mask must have a batch of 1, or one of 3 or more, as the "
      "query; got 2",
      call({3, 4, 8, 16}, {3, 4, 8, 16}, {3, 4, 8, 16},
           {.block_mask = create_block_mask(mods::causal(), 2, 1, 8, 8)}));
  expect_error(ErrorKind::value, "[flex_attention] scale must be finite; got inf",
               call(s, s, s, {.scale = kInf}));
  expect_error(ErrorKind::value,
               "[flex_attention] q_begin must have 1 number for all batch entries, or 2, one for "
               "each; got 3",
               call(s, s, s, {.q_begin = {1, 2, 3}}));
  expect_error(ErrorKind::value,
               "[flex_attention] return_aux asks for outputs, and aux, where to put them, is null",
               call(s, s, s, {.return_aux = {.lse = true}}));
  EXPECT_THROW(flex_attention(Tensor(s, DType::i32), Tensor(s, DType::f32), Tensor(s, DType::f32)),
               Error);
}

TEST(FlexAttention, FirstFaultOfAVisibleElement) {
  const Buffer bias(std::vector<float>(100, 1.f), {.name = "bias"});
  const ScoreMod mod = [&](auto score, auto, auto, auto q, auto kv) {
    return score + bias[q + kv];
  };
  for (const std::int64_t q_len : {4, 70}) {
    AttentionCase c{.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = q_len, .kv_len = 110};
    c.score_mod = mod;
    const AttentionTensors tensors(c, 1);
    expect_error(ErrorKind::index,
                 "[formula] index 100 is outside buffer 'bias' of size 100 (axis 0) at b=0, h=0, "
                 "q_idx=0, kv_idx=100",
                 [&] { ours(c, tensors); });
    c.mask_mod = MaskMod::parse("(q_idx + kv_idx < 100) | ((h == 1) & (b == 1) & (kv_idx == 107))");
    expect_error(ErrorKind::index,
                 "[formula] index 107 is outside buffer 'bias' of size 100 (axis 0) at b=1, h=1, "
                 "q_idx=0, kv_idx=107",
                 [&] { ours(c, tensors); });
    // Hidden elements may read what they like.
    c.mask_mod = MaskMod::parse("q_idx + kv_idx < 100");
    EXPECT_LT(largest_error(ours(c, tensors).out, exact(c, tensors).out), 1e-5);
  }
}

TEST(AttentionPlan, RunsForManyLayersAndSeesNewContents) {
  const AttentionCase c{.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = 70, .kv_len = 90};
  Tensor slopes = Tensor::from<float>({0.1f, 0.2f});
  const ScoreMod mod = mods::alibi(mods::Table(Buffer(slopes)));
  const AttentionTensors first(c, 1), second(c, 2);
  AttentionPlan plan(AttentionShape::of(first.q, first.k, first.v), {.score_mod = mod});
  for (const AttentionTensors* tensors : {&first, &second}) {
    for (const float slope : {0.1f, 0.7f}) {
      slopes.at<float>({0}) = slope;
      Tensor out({2, 2, 70, 16}, DType::f32);
      plan.run(tensors->q, tensors->k, tensors->v, {.out = out.view()});
      const Tensor once = flex_attention(tensors->q, tensors->k, tensors->v, {.score_mod = mod});
      EXPECT_EQ(std::memcmp(out.data(), once.data(), static_cast<std::size_t>(out.numel()) * 4), 0);
    }
  }
  EXPECT_THROW(
      plan.run(first.q, first.q, first.v, {.out = Tensor({2, 2, 70, 16}, DType::f32).view()}),
      Error);
}

}  // namespace
}  // namespace quire::testing
