// A run of a plan allocates nothing: every allocation of this program is counted here. Not under a
// sanitizer, which has allocators of its own.
#include <gtest/gtest.h>

#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "tests/support/attention_case.h"
#include "tests/support/backward_case.h"
#include "tests/support/counted_allocations.h"
#include "tests/support/jagged_case.h"

namespace quire::testing {
namespace {

TEST(Allocation, CountsWhatThisProgramAllocates) {
  if (!counts_allocations()) GTEST_SKIP();
  const long before = allocations();
  const Tensor tensor({4}, DType::f32);
  EXPECT_GT(allocations(), before);
}

TEST(Allocation, ARunOfAPlanAllocatesNothing) {
  if (!counts_allocations()) GTEST_SKIP();
  SerialExecutor serial;
  for (const std::int64_t q_len : {1, 100}) {
    for (const bool with_mods : {false, true}) {
      AttentionCase c{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = q_len, .kv_len = 2100};
      if (with_mods) {
        c.mask_mod = MaskMod::parse("(kv_idx - q_idx) % 7 != 3");
        c.score_mod = mods::softcap(3);
      }
      const AttentionTensors t(c, 1);
      FlexAttentionOptions options = c.options();
      options.executor = &serial;
      AttentionPlan plan(AttentionShape::of(t.q, t.k, t.v), options);
      Tensor out = Tensor::empty({2, 4, q_len, 16}, DType::f32);
      const long before = allocations();
      plan.run(t.q, t.k, t.v, {.out = out.view()});
      EXPECT_EQ(allocations(), before) << c.to_string();
    }
  }
}

TEST(Allocation, ARunOfABackwardPlanAllocatesNothing) {
  if (!counts_allocations()) GTEST_SKIP();
  SerialExecutor serial;
  for (const bool with_mods : {false, true}) {
    AttentionCase c{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 700};
    if (with_mods) {
      c.mask_mod = MaskMod::parse("(kv_idx - q_idx) % 7 != 3");
      const Buffer bias(std::vector<float>(4), {.name = "bias", .wants_gradient = true});
      c.score_mod = ScoreMod::parse("tanh(score) + bias[h]", {{"bias", bias}});
      c.head_dim = 13;
    }
    const BackwardTensors t(c, 1);
    FlexAttentionOptions options = c.options();
    options.executor = &serial;
    AttentionBackwardPlan plan(AttentionShape::of(t.forward.q, t.forward.k, t.forward.v),
                               {.forward = options});
    Tensor q(t.forward.q.shape(), DType::f32), k(t.forward.k.shape(), DType::f32),
        v(t.forward.v.shape(), DType::f32), bias({4}, DType::f32);
    const TensorView buffers[] = {bias.view()};
    const BackwardInputs inputs = t.inputs();
    const long before = allocations();
    plan.run(inputs, {.q = q.view(),
                      .k = k.view(),
                      .v = v.view(),
                      .buffers = std::span(buffers, with_mods ? 1 : 0)});
    EXPECT_EQ(allocations(), before) << c.to_string();
  }
}

TEST(Allocation, ARunOfAJaggedPlanAllocatesNothing) {
  if (!counts_allocations()) GTEST_SKIP();
  SerialExecutor serial;
  for (const bool with_mods : {false, true}) {
    JaggedCase c{.q_lengths = {100, 1, 0, 7}, .kv_lengths = {100, 2100, 3, 0}};
    if (with_mods) {
      c.mask_mod = MaskMod::parse("(kv_idx - q_idx) % 7 != b");
      c.score_mod = mods::softcap(3);
    }
    const JaggedTensors t(c, 1);
    JaggedAttentionOptions options = c.options();
    options.executor = &serial;
    JaggedAttentionPlan plan(t.q.jagged, t.k.jagged, t.v.jagged, options);
    Tensor out = Tensor::empty({108, 2, 16}, DType::f32), lse = Tensor::empty({108, 2}, DType::f32);
    const long before = allocations();
    plan.run(t.q.jagged.values, t.k.jagged.values, t.v.jagged.values,
             {.out = out.view(), .lse = lse.view()});
    EXPECT_EQ(allocations(), before) << c.to_string();
  }
}

}  // namespace
}  // namespace quire::testing
