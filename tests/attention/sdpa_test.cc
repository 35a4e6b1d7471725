// scaled_dot_product_attention against the f64 reference: masks of every kind and shape, broadcast
// of every axis, ranks, groups, alignments; and the errors. Backends: sdpa_backend_test.cc.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

AttentionCase with_dtype(AttentionCase c, DType dtype) {
  c.q_dtype = c.k_dtype = c.v_dtype = dtype;
  return c;
}

// `c` says by its mods what `options` say by a mask.
void expect_as_good_as_naive(const AttentionCase& c, const SdpaOptions& options,
                             const std::string& what) {
  const AttentionTensors t(c, 1);
  const Tensor got = scaled_dot_product_attention(t.q, t.k, t.v, options).to(DType::f64);
  const Tensor want = exact(c, t).out;
  const double rounding = c.q_dtype == DType::bf16  ? 0x1p-7
                          : c.q_dtype == DType::f16 ? 0x1p-11
                                                    : 0x1p-24;
  EXPECT_EQ(got.shape(), want.shape());
  EXPECT_LE(largest_error(got, want), 2 * largest_error(naive(c, t).out, want) + rounding)
      << what << " " << c.to_string();
}

Tensor random_mask(const Shape& shape, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  Tensor mask(shape, DType::f64);
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    const bool visible = random() % 3 != 0;
    mask.data_as<double>()[i] = dtype == DType::boolean ? visible
                                : visible ? static_cast<double>(random() % 1000) / 250 - 2
                                          : -std::numeric_limits<double>::infinity();
  }
  return mask.to(dtype);
}

TEST(Sdpa, MaskTensors) {
  FewerIfEmulated fewer(7);
  for (const DType dtype : kTypes) {
    for (const std::int64_t q_len : {1, 3, 70}) {
      for (const Shape& shape : std::vector<Shape>{{q_len, 150},
                                                   {1, 150},
                                                   {150},
                                                   {q_len, 1},
                                                   {4, q_len, 150},
                                                   {4, 1, 1},
                                                   {2, 1, 1, 150},
                                                   {1, 1, q_len, 150},
                                                   {2, 4, q_len, 150},
                                                   {2, 1, q_len, 1},
                                                   {1, 1, 1, 1},
                                                   {}}) {
        for (const DType mask_type : {DType::boolean, dtype}) {
          if (fewer.leaves_out()) continue;
          const Tensor mask = random_mask(shape, mask_type, 7);
          AttentionCase c = with_dtype({.batch = 2,
                                        .q_heads = 4,
                                        .kv_heads = 2,
                                        .q_len = q_len,
                                        .kv_len = 150,
                                        .head_dim = 12,
                                        .v_head_dim = 20},
                                       dtype);
          const NamedBuffers whole{
              {"m", Buffer(contiguous(mask.view().expand({2, 4, q_len, 150})))}};
          if (mask_type == DType::boolean)
            c.mask_mod = MaskMod::parse("m[b, h, q_idx, kv_idx]", whole);
          else
            c.score_mod = ScoreMod::parse("score + m[b, h, q_idx, kv_idx]", whole);
          expect_as_good_as_naive(c, {.attn_mask = ConstTensorView(mask), .enable_gqa = true},
                                  to_string(shape) + " " + dtype_name(mask_type));
        }
      }
    }
  }
}

TEST(Sdpa, StridedMask) {
  const Tensor mask = random_mask({150, 70}, DType::boolean, 3);
  const AttentionCase c{.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = 70, .kv_len = 150};
  const AttentionTensors t(c, 2);
  const Tensor copy = contiguous(mask.view().transpose(0, 1));
  EXPECT_TRUE(
      same_bits(scaled_dot_product_attention(
                    t.q, t.k, t.v, {.attn_mask = ConstTensorView(mask.view().transpose(0, 1))}),
                scaled_dot_product_attention(t.q, t.k, t.v, {.attn_mask = ConstTensorView(copy)})));
}

TEST(Sdpa, CausalAndRules) {
  for (const DType dtype : kTypes) {
    for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {1, 257}, {113, 203}, {799, 3}, {5, 150}}) {
      AttentionCase c = with_dtype(
          {.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len}, dtype);
      expect_as_good_as_naive(c, {}, "full");
      c.mask_mod = MaskMod::parse("q_idx >= kv_idx");
      expect_as_good_as_naive(c, {.is_causal = true}, "top left");
      const std::int64_t shift = kv_len - q_len;
      c.mask_mod = MaskMod([&](auto, auto, auto q, auto kv) { return q + shift >= kv; });
      expect_as_good_as_naive(c, {.is_causal = true, .alignment = CausalAlignment::kBottomRight},
                              "bottom right");
      c.mask_mod = MaskMod::parse("(kv_idx + b + h) % 3 != 0");
      c.scale = -0.3;
      expect_as_good_as_naive(c, {.attn_mask = *c.mask_mod, .scale = -0.3}, "rule");
    }
  }
}

// Each (batch entry, head) by itself, with tensors that were never broadcast.
void expect_as_alone(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const Shape& batch, std::int64_t heads, const SdpaOptions& options = {}) {
  const Tensor out = scaled_dot_product_attention(q, k, v, options);
  Shape lead = batch;
  lead.push_back(heads);
  const auto whole = [&](const ConstTensorView& view) {
    Shape shape = lead;
    for (const std::int64_t axis : {-2, -1}) shape.push_back(view.dim(axis));
    const Tensor copy = contiguous(view.expand(shape));
    return copy.reshape({element_count(lead), view.dim(-2), view.dim(-1)});
  };
  const Tensor all_q = whole(q), all_k = whole(k), all_v = whole(v);
  Shape shape = lead;
  shape.push_back(q.dim(-2));
  shape.push_back(v.dim(-1));
  ASSERT_EQ(element_count(out.shape()), element_count(shape));
  const Tensor flat = out.reshape({element_count(lead), q.dim(-2), v.dim(-1)});
  for (std::int64_t i = 0; i < element_count(lead); ++i) {
    const Tensor alone = scaled_dot_product_attention(
        all_q.view().select(0, i), all_k.view().select(0, i), all_v.view().select(0, i));
    EXPECT_EQ(alone.rank(), 2u);
    EXPECT_TRUE(same_bits(flat.view().select(0, i), alone))
        << i << " " << to_string(q.shape()) << " " << to_string(k.shape());
  }
}

Tensor numbers(const Shape& shape, unsigned seed, DType dtype = DType::f32) {
  std::mt19937 random(seed);
  Tensor tensor(shape, DType::f64);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data_as<double>()[i] = static_cast<double>(random() % 2001) / 1000 - 1;
  return tensor.to(dtype);
}

TEST(Sdpa, RanksAndBroadcast) {
  struct Sizes {
    Shape q, k, v, batch;
    std::int64_t heads;
    Shape out;
  };
  for (const Sizes& s : std::vector<Sizes>{
           {{9, 8}, {30, 8}, {30, 5}, {}, 1, {9, 5}},
           {{3, 9, 8}, {3, 30, 8}, {3, 30, 5}, {}, 3, {3, 9, 5}},
           {{3, 9, 8}, {30, 8}, {1, 30, 5}, {}, 3, {3, 9, 5}},
           {{1, 9, 8}, {3, 30, 8}, {3, 30, 5}, {}, 3, {3, 9, 5}},
           {{2, 3, 9, 8}, {1, 3, 30, 8}, {2, 1, 30, 5}, {2}, 3, {2, 3, 9, 5}},
           {{1, 3, 9, 8}, {2, 1, 30, 8}, {2, 1, 30, 5}, {2}, 3, {2, 3, 9, 5}},
           {{2, 4, 3, 70, 8}, {2, 4, 3, 30, 8}, {2, 4, 3, 30, 5}, {2, 4}, 3, {2, 4, 3, 70, 5}},
           {{2, 1, 3, 9, 8}, {4, 3, 30, 8}, {2, 4, 1, 30, 5}, {2, 4}, 3, {2, 4, 3, 9, 5}},
           {{2, 1, 4, 1, 9, 8},
            {1, 3, 1, 2, 30, 8},
            {3, 4, 2, 30, 5},
            {2, 3, 4},
            2,
            {2, 3, 4, 2, 9, 5}}}) {
    const Tensor q = numbers(s.q, 1), k = numbers(s.k, 2), v = numbers(s.v, 3);
    EXPECT_EQ(scaled_dot_product_attention(q, k, v).shape(), s.out);
    expect_as_alone(q, k, v, s.batch, s.heads);
  }
  // Leading axes that strides cannot merge.
  const Tensor q = numbers({4, 2, 3, 9, 8}, 1), k = numbers({4, 2, 3, 30, 8}, 2);
  const ConstTensorView turned = q.view().transpose(0, 1), keys = k.view().transpose(0, 1);
  expect_as_alone(turned, keys, keys, {2, 4}, 3);
}

// A mask with batch axes of its own is indexed by parts of b.
TEST(Sdpa, MaskOfManyBatchAxes) {
  const Tensor q = numbers({2, 3, 2, 9, 8}, 1), k = numbers({2, 3, 2, 30, 8}, 2);
  for (const Shape& shape : std::vector<Shape>{
           {2, 1, 1, 9, 30}, {3, 1, 1, 30}, {2, 3, 2, 9, 30}, {2, 3, 1, 1, 30}, {1, 1, 2, 1, 1}}) {
    const Tensor mask = random_mask(shape, DType::boolean, 5);
    const Tensor whole = contiguous(mask.view().expand({2, 3, 2, 9, 30}));
    const Tensor out = scaled_dot_product_attention(q, k, k, {.attn_mask = ConstTensorView(mask)});
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        const auto part = [&](const Tensor& all) { return all.view().select(0, i).select(0, j); };
        const Tensor alone = scaled_dot_product_attention(
            part(q), part(k), part(k), {.attn_mask = part(std::as_const(whole))});
        EXPECT_TRUE(same_bits(part(out), alone)) << to_string(shape) << " " << i << " " << j;
      }
    }
  }
}

TEST(Sdpa, GroupsOfHeads) {
  for (const DType dtype : kTypes) {
    const Tensor q = numbers({2, 6, 70, 8}, 1, dtype), k = numbers({2, 2, 90, 8}, 2, dtype),
                 v = numbers({2, 2, 90, 24}, 3, dtype);
    const Tensor got = scaled_dot_product_attention(q, k, v, {.enable_gqa = true});
    const Tensor want = flex_attention(q, k, v, {.enable_gqa = true});
    EXPECT_TRUE(same_bits(got, want));
  }
}

TEST(Sdpa, NothingToCompute) {
  const auto out = [](const Shape& q, const Shape& kv, const SdpaOptions& options = {}) {
    const Tensor k(kv, DType::f32);
    const Tensor result = scaled_dot_product_attention(Tensor(q, DType::f32), k, k, options);
    for (std::int64_t i = 0; i < result.numel(); ++i) EXPECT_EQ(result.data_as<float>()[i], 0);
    return result.shape();
  };
  EXPECT_EQ(out({2, 3, 0, 8}, {2, 3, 5, 8}), (Shape{2, 3, 0, 8}));
  EXPECT_EQ(out({2, 3, 5, 8}, {2, 3, 0, 8}, {.is_causal = true}), (Shape{2, 3, 5, 8}));
  EXPECT_EQ(out({0, 3, 5, 8}, {1, 3, 5, 8}), (Shape{0, 3, 5, 8}));
  EXPECT_EQ(out({2, 0, 5, 8}, {2, 1, 5, 8}), (Shape{2, 0, 5, 8}));
  const Tensor none({5, 0}, DType::boolean);
  EXPECT_EQ(out({5, 8}, {0, 8}, {.attn_mask = ConstTensorView(none)}), (Shape{5, 8}));
  const Tensor hidden({5, 9}, DType::boolean);
  EXPECT_EQ(out({5, 8}, {9, 8}, {.attn_mask = ConstTensorView(hidden)}), (Shape{5, 8}));
}

TEST(Sdpa, Errors) {
  const Tensor q({2, 4, 5, 8}, DType::f32), k({2, 4, 7, 8}, DType::f32);
  const auto expect = [&](ErrorKind kind, const std::string& text, const Tensor& query,
                          const Tensor& key, const Tensor& value, const SdpaOptions& options = {}) {
    const std::string all = "[scaled_dot_product_attention] " + text;
    expect_error(kind, all, [&] { scaled_dot_product_attention(query, key, value, options); });
    EXPECT_EQ(why_not(SDPBackend::kMath, query, key, value, options),
              std::vector<std::string>{all});
    EXPECT_EQ(choose_backend(query, key, value, options), SDPBackend::kError);
  };
  const auto zeros = [](const Shape& shape, DType dtype = DType::f32) {
    return Tensor(shape, dtype);
  };
  using enum ErrorKind;
  expect(value, "query, key and value must be [..., length, dim]; got [8]", zeros({8}), k, k);
  expect(type, "key must be f32, f64, bf16 or f16; got i32", q, zeros({2, 4, 7, 8}, DType::i32), k);
  expect(runtime, "query, key and value must have the same dtype; got f32, f32 and bf16", q, k,
         k.to(DType::bf16));
  expect(value, "query and key must have the same head dim; got 8 and 9", q, zeros({2, 4, 7, 9}),
         k);
  expect(value, "key and value must have the same length; got 7 and 6", q, k, zeros({2, 4, 6, 8}));
  expect(value, "key and value must have the same number of heads, or 1; got 4 and 2", q, k,
         zeros({2, 2, 7, 8}));
  const Tensor two = zeros({2, 2, 7, 8}), three = zeros({2, 3, 7, 8});
  expect(value,
         "query and key must have the same number of heads, or 1, or enable_gqa must be set; got 4 "
         "and 2",
         q, two, two);
  expect(value, "q_heads must be a multiple of kv_heads; got 4 and 3", q, three, three,
         {.enable_gqa = true});
  expect(value,
         "the axes before [heads, length, dim] must be equal or 1; got [2, 4, 5, 8], [3, 4, 7, 8] "
         "and [2, 4, 7, 8]",
         q, zeros({3, 4, 7, 8}), k);
  expect(value, "scale must be finite; got inf", q, k, k,
         {.scale = std::numeric_limits<double>::infinity()});
  expect(value, "dropout_p must be in 0..1; got 1.5", q, k, k, {.dropout_p = 1.5});
  expect(value, "dropout_p must be in 0..1; got nan", q, k, k,
         {.dropout_p = std::numeric_limits<double>::quiet_NaN()});
  expect(
      value,
      "Explicit attn_mask should not be set when is_causal=True: give a rule such as causal & mask",
      q, k, k, {.attn_mask = mods::causal(), .is_causal = true});
  const Tensor ints({5, 7}, DType::i32), wide({5, 8}, DType::boolean),
      deep({1, 2, 4, 5, 7}, DType::boolean);
  expect(type, "attn_mask must be bool or float; got i32", q, k, k,
         {.attn_mask = ConstTensorView(ints)});
  expect(value, "attn_mask must broadcast to [2, 4, 5, 7]; got [5, 8]", q, k, k,
         {.attn_mask = ConstTensorView(wide)});
  expect(value, "attn_mask must broadcast to [2, 4, 5, 7]; got [1, 2, 4, 5, 7]", q, k, k,
         {.attn_mask = ConstTensorView(deep)});
}

}  // namespace
}  // namespace quire::testing
