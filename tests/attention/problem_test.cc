// AttentionProblem: one check in the name of the function that was called, one set of options for
// every layout, what a call has no use for refused by name.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "quire/attend.h"
#include "quire/flex_attention_backward.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "quire/scaled_dot_product_attention.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

struct Tensors {
  Tensor q = random_normal({2, 2, 30, 8}, DType::f32, 1);
  Tensor k = random_normal({2, 2, 40, 8}, DType::f32, 2);
  Tensor v = random_normal({2, 2, 40, 8}, DType::f32, 3);
  Tensor lse = Tensor({2, 2, 30}, DType::f32);
};

TEST(AttentionProblem, ErrorsNameTheFunctionThatWasCalled) {
  const Tensors t;
  const double inf = std::numeric_limits<double>::infinity();
  const std::string text = "scale must be finite; got inf";
  expect_error(ErrorKind::value, "[flex_attention] " + text,
               [&] { (void)flex_attention(t.q, t.k, t.v, {.scale = inf}); });
  expect_error(ErrorKind::value, "[flex_attention_backward] " + text, [&] {
    (void)flex_attention_backward(
        {.q = t.q, .k = t.k, .v = t.v, .out = t.q, .lse = t.lse, .d_out = t.q},
        {.forward = {.scale = inf}});
  });
  expect_error(ErrorKind::value, "[scaled_dot_product_attention] " + text,
               [&] { (void)scaled_dot_product_attention(t.q, t.k, t.v, {.scale = inf}); });
  expect_error(ErrorKind::value, "[scaled_dot_product_attention_backward] " + text, [&] {
    (void)scaled_dot_product_attention_backward(SdpaBackwardInputs{t.q, t.k, t.v, t.q, t.lse, t.q},
                                                {.scale = inf});
  });
  expect_error(ErrorKind::value, "[mine] " + text, [&] {
    AttentionPlan(AttentionProblem::dense(t.q, t.k, t.v, {.scale = inf}, "mine"));
  });
  KVCache cache({.kv_heads = 2, .head_dim = 8, .n_pages = 4});
  const NewTokens step[] = {{cache.create(), 0}};
  expect_error(ErrorKind::value, "[attend] " + text,
               [&] { AttendPlan(cache, step, {.q_heads = 2}, {.scale = inf}); });
  const Tensor values({5, 2, 8}, DType::f32), wrong = Tensor::from<std::int64_t>({0, 9}, {2});
  const Jagged batch{values, wrong};
  const Tensor rows({5, 2}, DType::f32);
  const std::string beyond = "query: sequence 0 ends at 9, beyond the 5 tokens of the values";
  expect_error(ErrorKind::value, "[flex_attention_backward] " + beyond, [&] {
    (void)flex_attention_backward(
        JaggedBackwardInputs{batch, batch, batch, values, rows, values, std::nullopt});
  });
  expect_error(ErrorKind::value, "[scaled_dot_product_attention_backward] " + beyond, [&] {
    (void)scaled_dot_product_attention_backward(
        JaggedSdpaBackwardInputs{batch, batch, batch, values, rows, values});
  });
}

TEST(AttentionProblem, OptionsACallHasNoUseForAreRefused) {
  const Tensors t;
  expect_error(ErrorKind::value,
               "[flex_attention] window is for attend; give the mask mod sliding_window(4) instead",
               [&] { (void)flex_attention(t.q, t.k, t.v, {.window = 4}); });
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, 30, 40);
  expect_error(ErrorKind::value, "[flex_attention] give mask_mod or block_mask, not both", [&] {
    (void)flex_attention(t.q, t.k, t.v, {.mask_mod = mods::causal(), .block_mask = mask});
  });
  KVCache cache({.kv_heads = 2, .head_dim = 8, .n_pages = 4});
  const NewTokens step[] = {{cache.create(), 0}};
  expect_error(ErrorKind::value, "[attend] a step has no block_mask; give mask_mod",
               [&] { AttendPlan(cache, step, {.q_heads = 2}, {.block_mask = mask}); });
  expect_error(ErrorKind::value, "[attend] q_begin follows from the cache; do not give it",
               [&] { AttendPlan(cache, step, {.q_heads = 2}, {.q_begin = {3}}); });
  const Tensor values({5, 2, 8}, DType::f32), offsets = Tensor::from<std::int64_t>({0, 5}, {2});
  const Jagged batch{values, offsets};
  expect_error(ErrorKind::value,
               "[flex_attention] sequences of different lengths need a mask each: give mask_mod or "
               "a JaggedBlockMask",
               [&] { (void)flex_attention(batch, batch, batch, {.block_mask = mask}); });
}

TEST(AttentionProblem, AMaskModIsProvedInDenseCallsToo) {
  const Tensors t;
  const MaskMod rule = mods::sliding_window(9) | MaskMod::parse("kv_idx == b");
  const BlockMask mask = create_block_mask(rule, 2, 2, 30, 40, {.q_begin = 5});
  const Tensor want = flex_attention(t.q, t.k, t.v, {.block_mask = mask});
  EXPECT_TRUE(same_bits(flex_attention(t.q, t.k, t.v, {.mask_mod = rule, .q_begin = {5}}), want));
  EXPECT_TRUE(
      same_bits(flex_attention(t.q, t.k, t.v, {.mask_mod = rule, .q_begin = {5, 5}}), want));
}

// q_begin of sequences shifts q_idx, as in dense calls.
TEST(AttentionProblem, JaggedBatchesTakeQBegin) {
  const Tensors t;
  const auto values = [](const Tensor& of) {
    return contiguous(of.view().transpose(1, 2)).reshape({of.dim(0) * of.dim(2), 2, 8});
  };
  const Tensor q = values(t.q), k = values(t.k), v = values(t.v);
  const Tensor q_offsets = Tensor::from<std::int64_t>({0, 30, 60}, {3});
  const Tensor kv_offsets = Tensor::from<std::int64_t>({0, 40, 80}, {3});
  const AttentionOptions options{.mask_mod = mods::causal(), .q_begin = {4, 10}};
  EXPECT_TRUE(same_bits(
      flex_attention(Jagged{q, q_offsets}, Jagged{k, kv_offsets}, Jagged{v, kv_offsets}, options),
      values(flex_attention(t.q, t.k, t.v, options))));
}

TEST(AttentionProblem, OneRunIntoMemoryOfTheCaller) {
  const Tensors t;
  Tensor out({2, 2, 30, 8}, DType::f32), lse({2, 2, 30}, DType::f32);
  run_attention(AttentionProblem::dense(t.q, t.k, t.v, {}), t.q, t.k, t.v,
                {.out = out.view(), .lse = lse.view()});
  EXPECT_TRUE(same_bits(out, flex_attention(t.q, t.k, t.v)));
  Tensor d_k(t.k.shape(), DType::f32);
  const BackwardInputs inputs{
      .q = t.q, .k = t.k, .v = t.v, .out = out, .lse = lse, .d_out = ConstTensorView(t.q)};
  run_attention_backward(AttentionProblem::dense(t.q, t.k, t.v, {}), inputs, {.k = d_k.view()});
  EXPECT_TRUE(same_bits(d_k, *flex_attention_backward(inputs).k));
}

}  // namespace
}  // namespace quire::testing
