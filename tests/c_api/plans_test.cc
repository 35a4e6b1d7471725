// Plans of the C interface: the bits of single calls, run after run, and what is refused.
#include <gtest/gtest.h>

#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

struct CApiPlans : ::testing::Test {
  const Tensor slopes = Tensor::from<float>({0.5f, 0.25f}, {2});
  const ScoreMod alibi = mods::alibi(Buffer(slopes, {.name = "slopes", .wants_gradient = true}));
  const Tensor q = numbers({1, 2, 21, 16}, 1), k = numbers({1, 2, 33, 16}, 2),
               v = numbers({1, 2, 33, 8}, 3);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v);
  quire_buffers* buffers = nullptr;
  quire_score_mod* score = nullptr;
  quire_attention_problem problem = sized<quire_attention_problem>();

  void SetUp() override {
    const quire_tensor table = c_tensor(slopes);
    ASSERT_EQ(quire_buffers_create(&buffers), QUIRE_OK);
    ASSERT_EQ(quire_buffers_add(buffers, "slopes", &table, 1), QUIRE_OK);
    ASSERT_EQ(quire_score_mod_create(alibi.to_string().c_str(), buffers, &score), QUIRE_OK);
    problem.q = &c_q;
    problem.k = &c_k;
    problem.v = &c_v;
    problem.score_mod = score;
    problem.dropout_p = 0.25;
    problem.seed = 7;
  }
  void TearDown() override {
    quire_score_mod_free(score);
    quire_buffers_free(buffers);
  }
};

TEST_F(CApiPlans, RunsHaveTheBitsOfSingleCalls) {
  quire_attention_plan* plan = nullptr;
  ASSERT_EQ(quire_attention_plan_create(&problem, &plan), QUIRE_OK) << quire_last_error();
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    const Tensor keys = numbers({1, 2, 33, 16}, 4 + layer);
    AuxOutput aux;
    const Tensor wanted = flex_attention(q, keys, v,
                                         {.score_mod = alibi,
                                          .dropout_p = 0.25,
                                          .seed = 7,
                                          .return_aux = {.lse = true},
                                          .aux = &aux});
    Tensor out({1, 2, 21, 8}, DType::f32), lse({1, 2, 21}, DType::f32);
    const quire_tensor c_keys = c_tensor(keys), c_out = c_tensor(out), c_lse = c_tensor(lse);
    auto outputs = sized<quire_attention_outputs>();
    outputs.out = &c_out;
    outputs.lse = &c_lse;
    ASSERT_EQ(quire_attention_plan_run(plan, &c_q, &c_keys, &c_v, &outputs), QUIRE_OK)
        << quire_last_error();
    expect_same_bits(out, wanted);
    expect_same_bits(lse, *aux.lse);
    outputs.out = nullptr;
    expect_failed(QUIRE_ERROR_VALUE, "[quire_attention_plan] out is null",
                  quire_attention_plan_run(plan, &c_q, &c_keys, &c_v, &outputs));
  }
  auto outputs = sized<quire_attention_outputs>();
  const Tensor other({1, 2, 20, 16}, DType::f32);
  Tensor out({1, 2, 21, 8}, DType::f32);
  const quire_tensor c_other = c_tensor(other), c_out = c_tensor(out);
  outputs.out = &c_out;
  EXPECT_EQ(quire_attention_plan_run(plan, &c_other, &c_k, &c_v, &outputs), QUIRE_ERROR_VALUE);
  EXPECT_TRUE(std::string_view(quire_last_error())
                  .starts_with("[quire_attention_plan] the plan was made for a query of f32"))
      << quire_last_error();
  quire_attention_plan_free(plan);
}

TEST_F(CApiPlans, GradientsHaveTheBitsOfSingleCalls) {
  const AttentionOptions options{.score_mod = alibi, .dropout_p = 0.25, .seed = 7};
  AttentionOptions with_lse = options;
  AuxOutput aux;
  with_lse.return_aux = {.lse = true};
  with_lse.aux = &aux;
  const Tensor out = flex_attention(q, k, v, with_lse);
  Tensor d_k(k.shape(), DType::f32), d_slopes({2}, DType::f32);
  const quire_tensor c_out = c_tensor(out), c_lse = c_tensor(*aux.lse), c_d_k = c_tensor(d_k),
                     c_slopes = c_tensor(d_slopes);
  const char* name = "slopes";
  const quire_tensor* place = &c_slopes;
  auto gradients = sized<quire_gradients>();
  gradients.k = &c_d_k;
  gradients.buffer_names = &name;
  gradients.buffers = &place;
  gradients.buffer_count = 1;
  quire_attention_backward_plan* plan = nullptr;
  ASSERT_EQ(quire_attention_backward_plan_create(&problem, &gradients, &plan), QUIRE_OK)
      << quire_last_error();
  auto loss = sized<quire_loss>();
  loss.out = &c_out;
  loss.lse = &c_lse;
  for (std::uint32_t step = 0; step < 2; ++step) {
    const Tensor d_out = numbers({1, 2, 21, 8}, 8 + step);
    const quire_tensor c_d_out = c_tensor(d_out);
    loss.d_out = &c_d_out;
    ASSERT_EQ(quire_attention_backward_plan_run(plan, &c_q, &c_k, &c_v, &loss, &gradients),
              QUIRE_OK)
        << quire_last_error();
    const AttentionGradients wanted = flex_attention_backward(
        BackwardInputs{.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out},
        {.forward = options});
    expect_same_bits(d_k, *wanted.k);
    expect_same_bits(d_slopes, wanted.of("slopes"));
  }
  loss.d_out = &c_out;  // of the same shape
  gradients.k = nullptr;
  EXPECT_EQ(quire_attention_backward_plan_run(plan, &c_q, &c_k, &c_v, &loss, &gradients),
            QUIRE_ERROR_VALUE);
  EXPECT_TRUE(std::string_view(quire_last_error()).starts_with("[quire_attention_backward_plan] "))
      << quire_last_error();
  quire_attention_backward_plan_free(plan);
}

TEST_F(CApiPlans, MistakesAreNamed) {
  expect_failed(QUIRE_ERROR_VALUE, "[quire_attention_plan] plan is null",
                quire_attention_plan_create(&problem, nullptr));
  quire_attention_plan* plan = nullptr;
  expect_failed(QUIRE_ERROR_VALUE, "[quire_attention_plan] problem is null",
                quire_attention_plan_create(nullptr, &plan));
  EXPECT_EQ(plan, nullptr);
  expect_failed(QUIRE_ERROR_VALUE, "[quire_attention_backward_plan] plan is null",
                quire_attention_backward_plan_run(nullptr, &c_q, &c_k, &c_v, nullptr, nullptr));
}

}  // namespace
}  // namespace quire
