// scaled_dot_product_attention_backward against the f64 reference: dropout, masks, broadcast of
// every axis, jagged batches, lse of every backend, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "reference/attention.h"
#include "tests/support/attention_backward.h"
#include "tests/support/attention_case.h"
#include "tests/support/backward_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"
#include "tests/support/random_tensor.h"

namespace quire::testing {
namespace {

void expect_near(const char* name, const std::optional<Tensor>& got, const Tensor& want) {
  ASSERT_TRUE(got.has_value()) << name;
  ASSERT_EQ(got->shape(), want.shape()) << name;
  EXPECT_LE(largest_error(got->to(DType::f64), want), 2e-6 * (1 + largest(want))) << name;
}

struct Forward {
  Tensor out, lse;
};

Forward forward(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                SdpaOptions options) {
  Forward made;
  options.lse = &made.lse;
  made.out = scaled_dot_product_attention(q, k, v, options);
  return made;
}

TEST(SdpaBackward, Dropout) {
  const Tensor q = random_tensor({2, 4, 90, 16}, DType::f32, 1),
               k = random_tensor({2, 2, 450, 16}, DType::f32, 2),
               v = random_tensor({2, 2, 450, 24}, DType::f32, 3),
               d_out = random_tensor({2, 4, 90, 24}, DType::f32, 4);
  for (const bool causal : {false, true}) {
    for (const double p : {0.0, 0.3, 1.0}) {
      const SdpaOptions options{
          .dropout_p = p, .seed = 12345, .is_causal = causal, .enable_gqa = true};
      const Forward f = forward(q, k, v, options);
      const SdpaGradients got =
          scaled_dot_product_attention_backward({q, k, v, f.out, f.lse, d_out}, options);
      reference::AttentionOptions how{.dropout = {p, 12345}};
      if (causal) how.mask_mod = mods::causal();
      const reference::AttentionGradients want =
          reference::attention_backward({q, k, v}, how, {.out = d_out});
      expect_near("q", got.q, want.q);
      expect_near("k", got.k, want.k);
      expect_near("v", got.v, want.v);
      EXPECT_FALSE(got.attn_mask.has_value());
    }
  }
}

// A float mask of any shape that broadcasts, against the same as a score mod over the full shape.
TEST(SdpaBackward, MaskTensors) {
  const Tensor q = random_tensor({2, 2, 30, 8}, DType::f32, 1),
               k = random_tensor({2, 2, 45, 8}, DType::f32, 2),
               v = random_tensor({2, 2, 45, 8}, DType::f32, 3),
               d_out = random_tensor({2, 2, 30, 8}, DType::f32, 4);
  for (const Shape& shape : {Shape{2, 2, 30, 45}, Shape{30, 45}, Shape{2, 1, 1, 45},
                             Shape{2, 30, 1}, Shape{1}, Shape{1, 1, 30, 45}}) {
    const Tensor mask = random_tensor(shape, DType::f32, 9);
    const SdpaOptions options{.attn_mask = ConstTensorView(mask)};
    const Forward f = forward(q, k, v, options);
    const SdpaGradients got = scaled_dot_product_attention_backward({q, k, v, f.out, f.lse, d_out},
                                                                    options, {.attn_mask = true});
    const Buffer full(contiguous(mask.view().expand({2, 2, 30, 45})),
                      {.name = "mask", .wants_gradient = true});
    const reference::AttentionGradients want = reference::attention_backward(
        {q, k, v}, {.score_mod = ScoreMod([&](auto score, auto b, auto h, auto i, auto j) {
                      return score + full(b, h, i, j);
                    })},
        {.out = d_out});
    expect_near("q", got.q, want.q);
    expect_near("k", got.k, want.k);
    expect_near("v", got.v, want.v);
    // Summed over what was broadcast.
    Tensor sums(shape, DType::f64);
    const Tensor& wide = want.of("mask");
    for (std::int64_t at = 0; at < wide.numel(); ++at) {
      const std::int64_t index[] = {at / 2700, at / 1350 % 2, at / 45 % 30, at % 45};
      std::int64_t to = 0;
      for (std::size_t i = 0; i < shape.rank(); ++i)
        to = to * shape[i] + (shape[i] == 1 ? 0 : index[4 - shape.rank() + i]);
      sums.data_as<double>()[to] += wide.data_as<double>()[at];
    }
    expect_near("attn_mask", got.attn_mask, sums);
  }
}

// Axes of size 1 against inputs in which they are repeated.
TEST(SdpaBackward, Broadcast) {
  struct Shapes {
    Shape q, k, v;
  };
  for (const Shapes& s :
       {Shapes{{3, 2, 20, 8}, {1, 2, 33, 8}, {3, 1, 33, 8}}, Shapes{{20, 8}, {33, 8}, {33, 8}},
        Shapes{{2, 3, 2, 20, 8}, {3, 2, 33, 8}, {2, 1, 2, 33, 8}},
        Shapes{{1, 20, 8}, {4, 33, 8}, {4, 33, 8}}}) {
    const Tensor q = random_tensor(s.q, DType::f32, 1), k = random_tensor(s.k, DType::f32, 2),
                 v = random_tensor(s.v, DType::f32, 3);
    const Forward f = forward(q, k, v, {});
    const Tensor d_out = random_tensor(f.out.shape(), DType::f32, 4);
    const SdpaGradients got = scaled_dot_product_attention_backward({q, k, v, f.out, f.lse, d_out});
    // By finite differences in f64, of every 7th element.
    const auto check = [&](const char* name, const Tensor& input, int which,
                           const std::optional<Tensor>& gradient) {
      ASSERT_EQ(gradient->shape(), input.shape()) << name;
      Tensor wide[3] = {q.to(DType::f64), k.to(DType::f64), v.to(DType::f64)};
      const SdpaOptions plain;
      const auto loss = [&] {
        const Tensor out = scaled_dot_product_attention(wide[0], wide[1], wide[2], plain);
        double sum = 0;
        for (std::int64_t i = 0; i < out.numel(); ++i)
          sum += out.data_as<double>()[i] * static_cast<double>(d_out.data_as<float>()[i]);
        return sum;
      };
      for (std::int64_t i = 0; i < input.numel(); i += 7) {
        double& x = wide[which].data_as<double>()[i];
        const double before = x, step = 1e-5;
        x = before + step;
        const double above = loss();
        x = before - step;
        const double below = loss();
        x = before;
        EXPECT_NEAR((above - below) / (2 * step),
                    static_cast<double>(gradient->data_as<float>()[i]), 1e-5)
            << name << i;
      }
    };
    check("q", q, 0, got.q);
    check("k", k, 1, got.k);
    check("v", v, 2, got.v);
  }
}

TEST(SdpaBackward, LseOfEveryBackend) {
  const Tensor q = random_tensor({2, 30, 16}, DType::f32, 1),
               k = random_tensor({2, 45, 16}, DType::f32, 2),
               v = random_tensor({2, 45, 16}, DType::f32, 3);
  const Tensor fused = forward(q, k, v, {.is_causal = true}).lse;
  const Tensor math = forward(q, k, v, {.is_causal = true, .backends = {SDPBackend::kMath}}).lse;
  EXPECT_EQ(fused.shape(), (Shape{2, 30}));
  EXPECT_LE(largest_error(fused.to(DType::f64), math.to(DType::f64)), 1e-6);
  const Tensor none = forward(q, random_tensor({2, 0, 16}, DType::f32, 1),
                              random_tensor({2, 0, 16}, DType::f32, 1), {})
                          .lse;
  EXPECT_EQ(none.at<float>({1, 29}), -std::numeric_limits<float>::infinity());
}

TEST(SdpaBackward, NothingToSee) {
  const Tensor q = random_tensor({2, 5, 16}, DType::f32, 1),
               k = random_tensor({2, 0, 16}, DType::f32, 2);
  const Forward f = forward(q, k, k, {});
  const SdpaGradients got = scaled_dot_product_attention_backward({q, k, k, f.out, f.lse, f.out});
  EXPECT_EQ(largest(got.q->to(DType::f64)), 0);
  EXPECT_EQ(got.k->shape(), k.shape());
}

TEST(SdpaBackward, Jagged) {
  JaggedCase c{.q_lengths = {100, 1, 0, 7}, .kv_lengths = {100, 500, 3, 0}};
  c.kv_heads = 1;
  c.q_order = JaggedOrder::kHeads;
  c.q_holes = true;
  const JaggedTensors t(c, 3);
  for (const SDPBackend backend : {SDPBackend::kFlashAttention, SDPBackend::kMath}) {
    Tensor lse;
    const SdpaOptions options{.dropout_p = 0.25,
                              .seed = 99,
                              .is_causal = true,
                              .alignment = CausalAlignment::kBottomRight,
                              .enable_gqa = true,
                              .backends = {backend},
                              .lse = &lse};
    const Tensor out = scaled_dot_product_attention(t.q.jagged, t.k.jagged, t.v.jagged, options);
    const Tensor d_out = random_tensor(out.shape(), DType::f32, 5);
    const SdpaGradients got = scaled_dot_product_attention_backward(
        JaggedSdpaBackwardInputs{t.q.jagged, t.k.jagged, t.v.jagged, out, lse, d_out}, options);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto part = [&](const ConstTensorView& values, JaggedOrder order,
                            const JaggedValues& rows) {
        return (order == JaggedOrder::kTokens ? values.transpose(0, 1) : values)
            .unsqueeze(0)
            .slice(2, rows.begin[i], rows.begin[i] + rows.length[i]);
      };
      const reference::AttentionGradients want = reference::attention_backward(
          {part(t.q.jagged.values, c.q_order, t.q), part(t.k.jagged.values, c.k_order, t.k),
           part(t.v.jagged.values, c.v_order, t.v)},
          {.mask_mod = mods::causal_bottom_right(c.q_lengths[i], c.kv_lengths[i]),
           .b_begin = static_cast<std::int64_t>(i),
           .dropout = {0.25, 99}},
          {.out = part(d_out, c.q_order, t.q)});
      expect_near("q", contiguous(part(*got.q, c.q_order, t.q)), want.q);
      expect_near("k", contiguous(part(*got.k, c.k_order, t.k)), want.k);
      expect_near("v", contiguous(part(*got.v, c.v_order, t.v)), want.v);
    }
  }
}

// Beyond the head dims of the fused forward. What is not finite takes other loops: query 0 sees key
// 0 alone, so its gradients reach no other key.
TEST(SdpaBackward, WideHeads) {
  const Tensor q = random_tensor({1, 1, 20, 1100}, DType::f32, 1),
               k = random_tensor({1, 1, 20, 1100}, DType::f32, 2),
               v = random_tensor({1, 1, 20, 1100}, DType::f32, 3);
  Tensor d_out = random_tensor({1, 1, 20, 1100}, DType::f32, 4);
  const SdpaOptions options{.is_causal = true};
  const Forward f = forward(q, k, v, options);
  std::fill_n(d_out.data_as<float>(), 1100, 0.0f);
  const SdpaGradients want =
      scaled_dot_product_attention_backward({q, k, v, f.out, f.lse, d_out}, options);
  const reference::AttentionGradients exact =
      reference::attention_backward({q, k, v}, {.mask_mod = mods::causal()}, {.out = d_out});
  expect_near("q", want.q, exact.q);
  expect_near("k", want.k, exact.k);
  expect_near("v", want.v, exact.v);
  std::fill_n(d_out.data_as<float>(), 1100, std::numeric_limits<float>::infinity());
  const SdpaGradients got =
      scaled_dot_product_attention_backward({q, k, v, f.out, f.lse, d_out}, options);
  for (const std::int64_t column : {0, 1023, 1024, 1099}) {
    EXPECT_EQ(got.v->at<float>({0, 0, 0, column}), std::numeric_limits<float>::infinity());
    for (std::int64_t key = 1; key < 20; ++key)
      EXPECT_EQ(got.v->at<float>({0, 0, key, column}), want.v->at<float>({0, 0, key, column}))
          << key << ", " << column;
  }
}

TEST(SdpaBackward, Refuses) {
  const Tensor q = random_tensor({2, 5, 16}, DType::f32, 1),
               lse = random_tensor({2, 5}, DType::f32, 1);
  const Tensor bools({5, 5}, DType::boolean);
  expect_error(ErrorKind::value,
               "[scaled_dot_product_attention_backward] lse must have shape [2, 5]; got [2, 5, 16]",
               [&] {
                 scaled_dot_product_attention_backward({q, q, q, q, q, q});
               });
  expect_error(ErrorKind::value,
               "[scaled_dot_product_attention_backward] only an attn_mask that is a tensor of "
               "floats has a gradient",
               [&] {
                 scaled_dot_product_attention_backward({q, q, q, q, lse, q},
                                                       {.attn_mask = ConstTensorView(bools)},
                                                       {.attn_mask = true});
               });
}

}  // namespace
}  // namespace quire::testing
