// Gradients of captured buffers over whole batches: a jagged one against its sequences one by one,
// and sequences that share their keys against f64.
#include <gtest/gtest.h>

#include <random>

#include "quire/flex_attention_backward.h"
#include "tests/support/backward_case.h"
#include "tests/support/jagged_case.h"

namespace quire::testing {
namespace {

ScoreMod trainable_mod() {
  std::vector<float> slopes = {0.3f, -0.1f, 0.2f, 0.05f}, table(19);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * 7 % 5) * 0.1f;
  return ScoreMod::parse(
      "score + slopes[h] * tanh(score) + table[clamp(q_idx - kv_idx, -9, 9) + 9]",
      {{"slopes", Buffer(slopes, {.name = "slopes", .wants_gradient = true})},
       {"table", Buffer(table, {.name = "table", .wants_gradient = true})}});
}

TEST(BufferGradient, OfAJaggedBatchIsTheSumOverItsSequences) {
  JaggedCase c{.q_lengths = {70, 1, 0, 7, 130}, .kv_lengths = {70, 400, 3, 0, 250}};
  c.q_heads = 4;
  c.score_mod = trainable_mod();
  const JaggedTensors t(c, 3);
  const JaggedResult forward = run_jagged(c, t);
  Tensor d_out = forward.out.clone();
  std::mt19937_64 random(1);
  for (std::int64_t i = 0; i < d_out.numel(); ++i)
    d_out.data_as<float>()[i] = static_cast<float>(random() >> 40) * 0x1p-23f - 1;
  const AttentionGradients all = flex_attention_backward(
      JaggedBackwardInputs{t.q.jagged, t.k.jagged, t.v.jagged, forward.out, forward.lse, d_out},
      {.forward = c.options()});
  const auto part = [](const ConstTensorView& values, const JaggedValues& rows, std::size_t i) {
    return values.transpose(0, 1).unsqueeze(0).slice(2, rows.begin[i],
                                                     rows.begin[i] + rows.length[i]);
  };
  Tensor slopes({4}, DType::f64), table({19}, DType::f64);
  const auto add = [](Tensor& sum, const ConstTensorView& more) {
    const Tensor values = to(more, DType::f64);
    for (std::int64_t i = 0; i < sum.numel(); ++i)
      sum.data_as<double>()[i] += values.data_as<double>()[i];
  };
  for (std::size_t i = 0; i < c.q_lengths.size(); ++i) {
    const AttentionGradients alone =
        flex_attention_backward(BackwardInputs{.q = part(t.q.jagged.values, t.q, i),
                                               .k = part(t.k.jagged.values, t.k, i),
                                               .v = part(t.v.jagged.values, t.v, i),
                                               .out = part(forward.out, t.q, i),
                                               .lse = part(forward.lse, t.q, i),
                                               .d_out = part(d_out, t.q, i)},
                                {.forward = {.score_mod = c.score_mod, .enable_gqa = true}});
    EXPECT_TRUE(same_bits(*alone.q, part(*all.q, t.q, i))) << i;
    add(slopes, alone.of("slopes"));
    add(table, alone.of("table"));
  }
  EXPECT_GT(largest(slopes), 0.1);
  EXPECT_GT(largest(table), 0.1);
  EXPECT_LE(largest_error(all.of("slopes").to(DType::f64), slopes), 2e-6 * (1 + largest(slopes)));
  EXPECT_LE(largest_error(all.of("table").to(DType::f64), table), 2e-6 * (1 + largest(table)));
}

TEST(BufferGradient, OfABatchThatSharesItsKeys) {
  const AttentionCase c{.batch = 3,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .q_len = 70,
                        .kv_len = 410,
                        .kv_batch = 1,
                        .score_mod = trainable_mod(),
                        .mask_mod = MaskMod::parse("kv_idx <= q_idx + 150 * b + 20")};
  const BackwardTensors t(c, 5);
  const AttentionGradients d = flex_attention_backward(t.inputs(), {.forward = c.options()});
  for (const char* name : {"slopes", "table"}) {
    const Tensor want = exact_buffer(c, t, name);
    EXPECT_GT(largest(want), 0.1) << name;
    EXPECT_LE(largest_error(d.of(name).to(DType::f64), want), 3e-6 * (1 + largest(want))) << name;
  }
}

}  // namespace
}  // namespace quire::testing
