// flex_attention_backward: against f64, hidden and spoiled elements, dtypes, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "tests/support/backward_case.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

double unit(DType dtype) {
  // f32: lse itself is rounded, to 2^-22 of a weight where it is about 8.
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-21;
}

void expect_close(const char* name, const Tensor& got, const Tensor& want, const Tensor& plain,
                  DType dtype) {
  const double allowed = 2 * largest_error(plain, want) + unit(dtype) * largest(want);
  EXPECT_LE(largest_error(got, want), allowed) << name;
}

// At most twice the error of plain f32, and a rounding to the output's type.
void expect_as_good_as_naive(const AttentionCase& c, bool with_d_out = true,
                             bool with_d_lse = true) {
  SCOPED_TRACE(c.to_string());
  const BackwardTensors t(c, 5, with_d_out, with_d_lse);
  const GradientValues got = ours(c, t), want = exact(c, t), plain = naive(c, t);
  expect_close("q", got.q, want.q, plain.q, c.q_dtype);
  expect_close("k", got.k, want.k, plain.k, c.k_dtype);
  expect_close("v", got.v, want.v, plain.v, c.v_dtype);
}

TEST(Backward, OddShapes) {
  for (const auto& [q_len, kv_len] : {std::pair<int, int>{1, 1},
                                      {1, 257},
                                      {113, 203},
                                      {399, 3},
                                      {64, 96},
                                      {65, 97},
                                      {130, 500},
                                      {2, 800}}) {
    expect_as_good_as_naive({.q_heads = 2, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len});
    expect_as_good_as_naive({.q_len = q_len, .kv_len = kv_len, .head_dim = 13, .v_head_dim = 7});
  }
}

TEST(Backward, HeadDims) {
  for (const auto& [e, ev] : {std::pair<int, int>{1, 1},
                              {64, 64},
                              {128, 128},
                              {80, 48},
                              {5, 130},
                              {200, 90},
                              {300, 33},
                              {260, 270}})
    expect_as_good_as_naive(
        {.q_len = 70, .kv_len = 450, .head_dim = e, .v_head_dim = ev, .mask_mod = mods::causal()});
}

bool is_zero(const ConstTensorView& values) {
  const Tensor copy = to(values, DType::f64);
  for (std::int64_t i = 0; i < copy.numel(); ++i)
    if (copy.data_as<double>()[i] != 0) return false;
  return true;
}

// With a mod, out is the key's value to the bit, and so its score does not matter: 0, not what
// rounding leaves of it, which a slope could make anything of.
TEST(Backward, OneKeyUnderAModGivesExactlyZero) {
  const Buffer bias(std::vector<float>{0.3f, -0.7f}, {.name = "bias", .wants_gradient = true});
  const ScoreMod plus([&](auto score, auto, auto h, auto, auto) { return score + bias[h]; });
  const ScoreMod capped(
      [&](auto score, auto, auto h, auto, auto) { return tanh(score * bias[h]) * 3; });
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const ScoreMod& mod : {plus, capped}) {
      for (const int dims : {1, 7, 64, 100}) {
        AttentionCase c{.q_heads = 2,
                        .q_len = 37,
                        .head_dim = dims,
                        .v_head_dim = dims + 6,
                        .q_dtype = dtype,
                        .k_dtype = dtype,
                        .v_dtype = dtype,
                        .score_mod = mod};
        SCOPED_TRACE(c.to_string());
        const BackwardTensors one(c, 3, true, false);
        const AttentionGradients d =
            flex_attention_backward(one.inputs(), {.forward = c.options()});
        EXPECT_TRUE(is_zero(*d.q) && is_zero(*d.k) && !is_zero(*d.v));
        EXPECT_TRUE(is_zero(d.of("bias")));
        c.kv_len = 37;
        c.mask_mod = mods::causal();
        const BackwardTensors many(c, 3, true, false);
        const Tensor q = *flex_attention_backward(many.inputs(), {.forward = c.options()}).q;
        EXPECT_TRUE(is_zero(q.view().slice(2, 0, 1)) && !is_zero(q.view().slice(2, 1, 2)));
      }
    }
  }
}

TEST(Backward, Groups) {
  for (const int group : {1, 2, 7})
    expect_as_good_as_naive({.batch = 2,
                             .q_heads = 2 * group,
                             .kv_heads = 2,
                             .q_len = 100,
                             .kv_len = 100,
                             .mask_mod = mods::causal()});
}

TEST(Backward, DTypesAndStrides) {
  for (const Order order : {Order::kHeadsOutside, Order::kHeadsInside, Order::kDimOutside}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      AttentionCase c{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 130};
      c.order = order;
      c.q_dtype = c.k_dtype = c.v_dtype = dtype;
      expect_as_good_as_naive(c);
      c.k_dtype = DType::f32;
      c.mask_mod = mods::sliding_window(40);
      expect_as_good_as_naive(c);
    }
  }
}

TEST(Backward, F64) {
  AttentionCase c{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 430};
  c.k_dtype = DType::f64;
  for (const DType dtype : {DType::f64, DType::f32}) {
    c.q_dtype = c.v_dtype = dtype;
    c.mask_mod = mods::causal();
    const BackwardTensors t(c, 5);
    const GradientValues got = ours(c, t), want = exact(c, t);
    const double rounding = dtype == DType::f64 ? 1e-13 : 1e-6;
    EXPECT_LE(largest_error(got.q, want.q), rounding);
    EXPECT_LE(largest_error(got.k, want.k), 1e-6);
    EXPECT_LE(largest_error(got.v, want.v), rounding);
  }
}

TEST(Backward, OneOfTheTwoGradients) {
  const AttentionCase c{.q_len = 90, .kv_len = 430, .mask_mod = mods::causal()};
  expect_as_good_as_naive(c, true, false);
  expect_as_good_as_naive(c, false, true);
}

TEST(Backward, NegativeScaleAndPositions) {
  AttentionCase c{.q_len = 90, .kv_len = 430, .mask_mod = mods::causal(), .scale = -0.3};
  c.q_begin = 77;
  expect_as_good_as_naive(c);
  c.scale = 0;
  expect_as_good_as_naive(c);
}

TEST(Backward, KeysSharedByTheBatch) {
  AttentionCase c{.batch = 3, .q_heads = 2, .kv_heads = 1, .q_len = 70, .kv_len = 500};
  c.kv_batch = 1;
  c.mask_mod = MaskMod::parse("kv_idx <= q_idx + 100 * b");
  expect_as_good_as_naive(c);
}

TEST(Backward, RowsThatSeeNothing) {
  AttentionCase c{.q_heads = 2, .kv_heads = 2, .q_len = 150, .kv_len = 450};
  c.mask_mod = MaskMod::parse("(q_idx % 5 != 2) & (q_idx >= 70) & (kv_idx % 3 != h)");
  BackwardTensors t(c, 5);
  // Whatever is there where nothing was seen.
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t d = 0; d < 16; ++d) {
      t.forward.q_memory.at<float>({0, h, 72, d}) = kInf;
      t.d_out_memory.at<float>({0, h, 30, d}) = std::numeric_limits<float>::quiet_NaN();
      t.out.at<float>({0, h, 30, d}) = kInf;
    }
  }
  const GradientValues got = ours(c, t), want = exact(c, t);
  EXPECT_LE(largest_error(got.q, want.q), 1e-5);
  EXPECT_LE(largest_error(got.k, want.k), 1e-5);
  EXPECT_LE(largest_error(got.v, want.v), 1e-5);
  EXPECT_EQ(got.q.at<double>({0, 1, 72, 3}), 0);
  EXPECT_EQ(got.k.at<double>({0, 1, 1, 3}), 0);
}

// A key, a value, a query or a gradient that is not finite spoils what it takes part in and nothing
// else.
TEST(Backward, WhatIsHiddenSpoilsNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  AttentionCase c{.q_len = 150, .kv_len = 150, .mask_mod = mods::causal()};
  for (const float bad : {nan, kInf}) {
    for (int which = 0; which < 5; ++which) {
      SCOPED_TRACE(which);
      BackwardTensors clean(c, 5);
      for (std::int64_t d = 0; d < 16; ++d) {
        if (which == 0) clean.forward.k_memory.at<float>({0, 0, 140, d}) = bad;
        if (which == 1) clean.forward.v_memory.at<float>({0, 0, 140, d}) = bad;
        if (which == 2) clean.forward.q_memory.at<float>({0, 0, 20, d}) = bad;
        if (which == 3) clean.d_out_memory.at<float>({0, 0, 20, d}) = bad;
      }
      if (which == 4) c.mask_mod = MaskMod::parse("(kv_idx <= q_idx) & (kv_idx != 77)");
      if (which == 4) clean.forward.k_memory.at<float>({0, 0, 77, 3}) = bad;
      // As the forward of these inputs.
      BackwardTensors t = clean;
      FlexAttentionOptions options = c.options();
      AuxOutput aux;
      options.return_aux = {.lse = true};
      options.aux = &aux;
      t.out = flex_attention(t.forward.q, t.forward.k, t.forward.v, options);
      t.lse = *aux.lse;
      const GradientValues got = ours(c, t);
      if (which < 2 || which == 4) {
        for (std::int64_t q = 0; q < (which == 4 ? 150 : 140); ++q)
          EXPECT_TRUE(std::isfinite(got.q.at<double>({0, 0, q, 1}))) << q;
      }
      if (which == 2 || which == 3) {
        for (std::int64_t key = 21; key < 150; ++key) {
          EXPECT_TRUE(std::isfinite(got.k.at<double>({0, 0, key, 1}))) << key;
          EXPECT_TRUE(std::isfinite(got.v.at<double>({0, 0, key, 1}))) << key;
        }
      }
      if (which == 4) {
        EXPECT_EQ(got.k.at<double>({0, 0, 77, 3}), 0);
        EXPECT_EQ(largest(got.v) < 1e6, true);
      }
    }
  }
}

TEST(Backward, ScoreMods) {
  const Buffer bias(Tensor::from(std::vector<float>{0.5f, -1}, {2}),
                    {.name = "bias", .wants_gradient = true});
  const ScoreMod rules[] = {
      mods::alibi(2), mods::softcap(2),
      ScoreMod::parse("where((q_idx + kv_idx * 3 + h) % 5 == 0, -inf, score * 1.5)"),
      ScoreMod::parse("score * bias[h] + bias[0]", {{"bias", bias}})};
  for (const ScoreMod& rule : rules) {
    for (const bool masked : {false, true}) {
      AttentionCase c{.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 130, .kv_len = 450};
      c.score_mod = rule;
      if (masked) c.mask_mod = mods::causal();
      SCOPED_TRACE(c.to_string());
      const BackwardTensors t(c, 5);
      const AttentionGradients made = flex_attention_backward(t.inputs(), {.forward = c.options()});
      const GradientValues got = in_f64(made), want = exact(c, t);
      EXPECT_LE(largest_error(got.q, want.q), 1e-6 * (1 + largest(want.q)));
      EXPECT_LE(largest_error(got.k, want.k), 1e-6 * (1 + largest(want.k)));
      EXPECT_LE(largest_error(got.v, want.v), 1e-6 * (1 + largest(want.v)));
      if (rule.formula().buffers().empty() || !rule.formula().buffers()[0].wants_gradient())
        continue;
      const Tensor d_bias = exact_buffer(c, t, "bias");
      EXPECT_LE(largest_error(made.of("bias").to(DType::f64), d_bias), 1e-5 * largest(d_bias));
    }
  }
}

TEST(Backward, NothingToCompute) {
  for (const auto& [q_len, kv_len] : {std::pair<int, int>{0, 5}, {5, 0}, {0, 0}}) {
    const AttentionCase c{.q_len = q_len, .kv_len = kv_len};
    const BackwardTensors t(c, 5);
    const GradientValues got = ours(c, t);
    EXPECT_EQ(largest(got.q) + largest(got.k) + largest(got.v), 0);
  }
}

// By dS: the loss as a function of one element, in f64.
TEST(Backward, FiniteDifferences) {
  AttentionCase c{.q_heads = 2, .q_len = 5, .kv_len = 7, .head_dim = 3, .v_head_dim = 4};
  c.q_dtype = c.k_dtype = c.v_dtype = DType::f64;
  c.mask_mod = mods::causal();
  BackwardTensors t(c, 9);
  const auto loss = [&] {
    FlexAttentionOptions options = c.options();
    AuxOutput aux;
    options.return_aux = {.lse = true};
    options.aux = &aux;
    const Tensor out = flex_attention(t.forward.q, t.forward.k, t.forward.v, options);
    double sum = 0;
    for (std::int64_t i = 0; i < out.numel(); ++i)
      sum += out.data_as<double>()[i] * t.d_out_memory.data_as<double>()[i];
    for (std::int64_t i = 0; i < aux.lse->numel(); ++i)
      sum += aux.lse->data_as<double>()[i] * t.d_lse_memory.data_as<double>()[i];
    return sum;
  };
  const GradientValues got = ours(c, t);
  const auto check = [&](Tensor& memory, const Tensor& gradient) {
    for (std::int64_t i = 0; i < memory.numel(); ++i) {
      double& x = memory.data_as<double>()[i];
      const double before = x, step = 1e-6;
      x = before + step;
      const double above = loss();
      x = before - step;
      const double below = loss();
      x = before;
      EXPECT_NEAR((above - below) / (2 * step), gradient.data_as<double>()[i], 1e-8);
    }
  };
  check(t.forward.q_memory, got.q);
  check(t.forward.k_memory, got.k);
  check(t.forward.v_memory, got.v);
}

TEST(Backward, WantedGradientsAlone) {
  const AttentionCase c{
      .q_heads = 2, .kv_heads = 2, .q_len = 130, .kv_len = 500, .mask_mod = mods::causal()};
  const BackwardTensors t(c, 5);
  const GradientValues all = ours(c, t);
  const auto one = [&](WantedGradients wanted) {
    return flex_attention_backward(t.inputs(), {.forward = c.options(), .wanted = wanted});
  };
  const AttentionGradients q = one({.k = false, .v = false}), k = one({.q = false, .v = false}),
                           v = one({.q = false, .k = false});
  EXPECT_EQ(largest_error(q.q->to(DType::f64), all.q), 0);
  EXPECT_EQ(largest_error(k.k->to(DType::f64), all.k), 0);
  EXPECT_EQ(largest_error(v.v->to(DType::f64), all.v), 0);
  EXPECT_FALSE(q.k || q.v || k.q || k.v || v.q || v.k);
}

TEST(Backward, Refuses) {
  const AttentionCase c{.q_len = 5, .kv_len = 7};
  const BackwardTensors t(c, 5);
  const auto fails = [&](ErrorKind kind, const std::string& text, auto change) {
    BackwardInputs inputs = t.inputs();
    change(inputs);
    expect_error(kind, "[flex_attention_backward] " + text,
                 [&] { flex_attention_backward(inputs); });
  };
  const Tensor small({1, 1, 5}, DType::f32), ints({1, 1, 5}, DType::i32);
  fails(ErrorKind::value, "lse must have shape [1, 1, 5]; got [0]",
        [](BackwardInputs& i) { i.lse = {}; });
  fails(ErrorKind::type, "lse must be f32, f64, bf16 or f16; got i32",
        [&](BackwardInputs& i) { i.lse = ints; });
  fails(ErrorKind::value, "d_out must have shape [1, 1, 5, 16]; got [1, 1, 5]",
        [&](BackwardInputs& i) { i.d_out = small; });
  fails(ErrorKind::value, "out must have shape [1, 1, 5, 16]; got [1, 1, 5]",
        [&](BackwardInputs& i) { i.out = small; });
  fails(ErrorKind::value, "give d_out, d_lse or both: there is nothing to differentiate",
        [](BackwardInputs& i) { i.d_out = i.d_lse = {}; });
  const Tensor heads({1, 2, 7, 16}, DType::f32), wide({1, 1, 5, 1025}, DType::f32);
  fails(ErrorKind::value,
        "query and key must have the same number of heads, or enable_gqa must be set; got 1 and 2",
        [&](BackwardInputs& i) { i.k = i.v = heads; });
  fails(ErrorKind::value, "query and key must have the same head dim; got 1025 and 16",
        [&](BackwardInputs& i) { i.q = wide; });
  fails(ErrorKind::value, "the head dim of query and key must be in 0..1024; got 1025",
        [&](BackwardInputs& i) { i.q = (i.k = i.v = wide).data; });
  AttentionBackwardPlan plan(AttentionShape::of(t.forward.q, t.forward.k, t.forward.v));
  expect_error(ErrorKind::value,
               "[flex_attention_backward] the gradient of q was wanted when the plan was made, and "
               "none is given",
               [&] { plan.run(t.inputs(), {}); });
  Tensor d_q({1, 1, 5, 16}, DType::f32), d_kv({1, 1, 7, 16}, DType::f32);
  Tensor flat({1, 5, 16}, DType::f32), wider({1, 1, 7, 16}, DType::f64);
  std::vector<TensorView> buffers;
  const auto outputs = [&](const TensorView& q, const TensorView& k) {
    return [&, q, k] {
      Tensor d_v({1, 1, 7, 16}, DType::f32);
      plan.run(t.inputs(), {.q = q, .k = k, .v = d_v.view(), .buffers = buffers});
    };
  };
  expect_error(ErrorKind::value,
               "[flex_attention_backward] the gradient of q must have shape [1, 1, 5, 16]; got "
               "[1, 5, 16]",
               outputs(flat.view(), d_kv.view()));
  expect_error(ErrorKind::type, "[flex_attention_backward] the gradient of k must be f32; got f64",
               outputs(d_q.view(), wider.view()));
  buffers.push_back(flat.view());
  expect_error(ErrorKind::value,
               "[flex_attention_backward] gradients of 0 buffers are wanted; got 1",
               outputs(d_q.view(), d_kv.view()));
  const AttentionGradients made = flex_attention_backward(t.inputs());
  expect_error(ErrorKind::value,
               "[flex_attention_backward] there is no gradient of a buffer 'bias'",
               [&] { made.of("bias"); });
}

}  // namespace
}  // namespace quire::testing
