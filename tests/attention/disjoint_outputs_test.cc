// Outputs that share memory with inputs or with one another are refused where addresses show it,
// and nothing else is: parts of packed tensors lie between each other's rows.
#include <gtest/gtest.h>

#include <cstring>

#include "quire/attend.h"
#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/jagged.h"
#include "quire/paged.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

Tensor ones(const Shape& shape) {
  Tensor tensor(shape, DType::f32);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data_as<float>()[i] = 1;
  return tensor;
}

struct DisjointOutputs : ::testing::Test {
  Tensor q = ones({2, 3, 5, 8}), k = ones({2, 3, 7, 8}), v = ones({2, 3, 7, 8});
  Tensor out = Tensor({2, 3, 5, 8}, DType::f32), stats = Tensor({2, 3, 5}, DType::f32);
  AttentionPlan plan{AttentionShape::of(q, k, v)};

  void refused(const std::string& text, const AttentionPlan::Outputs& outputs) {
    expect_error(ErrorKind::value, "[flex_attention] " + text, [&] { plan.run(q, k, v, outputs); });
  }
};

TEST_F(DisjointOutputs, OfTheForwardPass) {
  refused("out must not share memory with query", {.out = q.view()});
  // The first rows of every head of the keys: between them lie others.
  refused("out must not share memory with key", {.out = k.view().slice(2, 0, 5)});
  // The last ones begin elsewhere, inside memory that the keys fill.
  refused("out must not share memory with key", {.out = k.view().slice(2, 2, 7)});
  const TensorView inside(v.data_as<float>() + 100, DType::f32, {2, 3, 5});
  refused("lse must not share memory with value", {.out = out.view(), .lse = inside});
  refused("max_scores must not share memory with lse",
          {.out = out.view(), .lse = stats.view(), .max_scores = stats.view()});
  refused(
      "out must have a place for every element; got shape [2, 3, 5, 8] with strides "
      "[120, 0, 8, 1]",
      {.out = TensorView(out.data(), DType::f32, {2, 3, 5, 8}, {120, 0, 8, 1})});
  plan.run(q, k, v, {.out = out.view(), .lse = stats.view()});
  EXPECT_EQ(out.at<float>({1, 2, 4, 7}), 1);
}

// Mods are run while the output is being written.
TEST_F(DisjointOutputs, OfTheForwardPassAndCapturedBuffers) {
  Tensor memory = ones({2, 3, 5, 8});
  const TensorView bias(memory.data(), DType::f32, {7});
  const Buffer captured = Buffer::borrow(bias, {.name = "bias"});
  const MaskMod rule = [&](auto, auto, auto, auto kv) { return captured[kv] > 0.5; };
  const ScoreMod score = [&](auto s, auto, auto, auto, auto kv) { return s + captured[kv]; };
  const auto refuse = [&](const FlexAttentionOptions& options) {
    AttentionPlan captures(AttentionShape::of(q, k, v), options);
    expect_error(ErrorKind::value, "[flex_attention] out must not share memory with bias",
                 [&] { captures.run(q, k, v, {.out = memory.view()}); });
    const TensorView part(memory.data_as<float>() + 5, DType::f32, {2, 3, 5});
    expect_error(ErrorKind::value, "[flex_attention] lse must not share memory with bias",
                 [&] { captures.run(q, k, v, {.out = out.view(), .lse = part}); });
    captures.run(q, k, v, {.out = out.view()});
  };
  refuse({.score_mod = score});
  refuse({.block_mask = create_block_mask(rule, 1, 1, 5, 7)});
  Tensor values = ones({7, 3, 8}), place = ones({7, 3, 8});
  const Buffer whole = Buffer::borrow(place.view().reshape({168}), {.name = "table"});
  const ScoreMod reads = [&](auto s, auto, auto, auto, auto kv) { return s + whole[kv]; };
  const Tensor offsets = Tensor::from<std::int32_t>({0, 7}, {2});
  const Jagged batch{.values = values, .offsets = offsets};
  JaggedAttentionPlan jagged(batch, batch, batch, {.score_mod = reads});
  expect_error(ErrorKind::value, "[flex_attention] out must not share memory with table",
               [&] { jagged.run(values, values, values, {.out = place.view()}); });
}

TEST_F(DisjointOutputs, PartsOfPackedTensorsPass) {
  // [batch, length, what, heads, dim]: query, key, value and the output in one piece of memory.
  Tensor packed = ones({2, 5, 4, 3, 8});
  const auto part = [&](int which) { return packed.view().select(2, which).transpose(1, 2); };
  AttentionPlan same(AttentionShape::of(part(0), part(1), part(2)));
  same.run(part(0), part(1), part(2), {.out = part(3)});
  EXPECT_EQ(packed.at<float>({1, 4, 3, 2, 7}), 1);
  expect_error(ErrorKind::value, "[flex_attention] out must not share memory with value",
               [&] { same.run(part(0), part(1), part(2), {.out = part(2)}); });
  // One behind the other.
  Tensor row = ones({4, 2, 3, 5, 8});
  const auto piece = [&](int which) { return row.view().select(0, which); };
  same.run(piece(0), piece(1), piece(2), {.out = piece(3)});
  // Nothing overlaps nothing.
  const Tensor none({2, 3, 0, 8}, DType::f32);
  AttentionPlan empty(AttentionShape::of(none, k, v));
  empty.run(none, k, v, {.out = k.view().slice(2, 0, 0)});
}

TEST_F(DisjointOutputs, OfEveryLayout) {
  const Tensor offsets = Tensor::from<std::int64_t>({0, 2, 6});
  Tensor tokens = ones({6, 3, 8});
  const Jagged batch{tokens, offsets};
  JaggedAttentionPlan jagged(batch, batch, batch);
  expect_error(ErrorKind::value, "[flex_attention] out must not share memory with query",
               [&] { jagged.run(tokens, tokens, tokens, {.out = tokens.view()}); });

  Tensor pages = ones({4, 3, 2, 8}), query = ones({1, 3, 2, 8});
  const Tensor table = Tensor::from<std::int32_t>({3, 1}, {1, 2});
  const Tensor lengths = Tensor::from<std::int32_t>({3});
  PagedKeysPlan paged(query, {pages, pages, table, lengths});
  expect_error(ErrorKind::value, "[flex_attention] out must not share memory with key",
               [&] { paged.run(query, pages, pages, {.out = pages.view().slice(0, 1, 2)}); });

  KVCache cache({.kv_heads = 3, .head_dim = 8, .n_pages = 1});
  const NewTokens step[] = {{cache.create(), 6}};
  cache.append(step);
  cache.write(0, step, tokens, tokens);
  AttendPlan attend(cache, step, {.q_heads = 3});
  expect_error(ErrorKind::value, "[attend] out must not share memory with query",
               [&] { attend.run(cache, 0, tokens, {.out = tokens.view()}); });
}

TEST_F(DisjointOutputs, OfTheBackwardPass) {
  Tensor slopes = ones({3});
  const ScoreMod mod =
      ScoreMod::parse("score + slopes[h]", {{"slopes", Buffer(slopes, {.wants_gradient = true})}});
  AuxOutput aux;
  const Tensor y =
      flex_attention(q, k, v, {.score_mod = mod, .return_aux = {.lse = true}, .aux = &aux});
  Tensor d_out = ones({2, 3, 5, 8}), d_q = q.clone(), d_k = k.clone(), d_slopes({3}, DType::f32);
  AttentionBackwardPlan backward(AttentionShape::of(q, k, v),
                                 {.forward = {.score_mod = mod}, .wanted = {.v = false}});
  const BackwardInputs inputs{.q = q, .k = k, .v = v, .out = y, .lse = *aux.lse, .d_out = d_out};
  const auto run = [&](TensorView to_q, TensorView to_k, TensorView to_slopes) {
    backward.run(inputs, {.q = to_q, .k = to_k, .buffers = std::span(&to_slopes, 1)});
  };
  const auto refused = [&](const std::string& text, TensorView to_q, TensorView to_k,
                           TensorView to_slopes) {
    expect_error(ErrorKind::value, "[flex_attention_backward] " + text,
                 [&] { run(to_q, to_k, to_slopes); });
  };
  run(d_q.view(), d_k.view(), d_slopes.view());
  refused("the gradient of q must not share memory with d_out", d_out.view(), d_k.view(),
          d_slopes.view());
  refused("the gradient of k must not share memory with k", d_q.view(), k.view(), d_slopes.view());
  refused("the gradient of k must not share memory with the gradient of q",
          d_k.view().slice(2, 0, 5), d_k.view(), d_slopes.view());
  refused("the gradient of a buffer must not share memory with a buffer", d_q.view(), d_k.view(),
          slopes.view());
}

}  // namespace
}  // namespace quire
