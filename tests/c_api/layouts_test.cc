// The C interface over pages, and its gradients: bits of the C++ functions, and what is refused.
#include <gtest/gtest.h>

#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

struct CApiLayouts : ::testing::Test {
  Tensor slopes = Tensor::from<float>({0.5f, 0.25f}, {2});
  ScoreMod alibi = mods::alibi(Buffer(slopes, {.name = "slopes", .wants_gradient = true}));
  quire_buffers* buffers = nullptr;
  quire_score_mod* score = nullptr;
  quire_mask_mod* causal = nullptr;

  void SetUp() override {
    const quire_tensor table = c_tensor(slopes);
    ASSERT_EQ(quire_buffers_create(&buffers), QUIRE_OK);
    ASSERT_EQ(quire_buffers_add(buffers, "slopes", &table, 1), QUIRE_OK);
    ASSERT_EQ(quire_score_mod_create(alibi.to_string().c_str(), buffers, &score), QUIRE_OK);
    ASSERT_EQ(quire_mask_mod_create("q_idx >= kv_idx", nullptr, &causal), QUIRE_OK);
  }
  void TearDown() override {
    quire_mask_mod_free(causal);
    quire_score_mod_free(score);
    quire_buffers_free(buffers);
  }
};

TEST_F(CApiLayouts, PagesHaveTheBitsOfCpp) {
  const Tensor q = numbers({2, 2, 3, 16}, 1), k = numbers({5, 2, 4, 16}, 2),
               v = numbers({5, 2, 4, 8}, 3);
  const Tensor table = Tensor::from<std::int32_t>({4, 1, 0, 2, 3, -1}, {2, 3});
  const Tensor lengths = Tensor::from<std::int64_t>({11, 7}, {2});
  AuxOutput aux;
  const Tensor wanted = flex_attention(q, PagedKeys{k, v, table, lengths},
                                       {.score_mod = alibi,
                                        .mask_mod = mods::causal(),
                                        .q_begin = {8, 4},
                                        .return_aux = {.lse = true},
                                        .aux = &aux});
  Tensor out({2, 2, 3, 8}, DType::f32), lse({2, 2, 3}, DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v),
                     c_table = c_tensor(table), c_lengths = c_tensor(lengths),
                     c_out = c_tensor(out), c_lse = c_tensor(lse);
  auto keys = sized<quire_paged_keys>();
  keys.k = &c_k;
  keys.v = &c_v;
  keys.page_table = &c_table;
  keys.lengths = &c_lengths;
  const std::int64_t begin[] = {8, 4};
  auto options = sized<quire_paged_attention_options>();
  options.score_mod = score;
  options.mask_mod = causal;
  options.q_begin = begin;
  options.q_begin_count = 2;
  options.lse = &c_lse;
  ASSERT_EQ(quire_flex_attention_paged(&c_q, &keys, &options, &c_out), QUIRE_OK)
      << quire_last_error();
  expect_same_bits(out, wanted);
  expect_same_bits(lse, *aux.lse);
  keys.lengths = nullptr;
  expect_failed(QUIRE_ERROR_VALUE, "[quire_flex_attention_paged] keys.lengths is null",
                quire_flex_attention_paged(&c_q, &keys, &options, &c_out));
}

TEST_F(CApiLayouts, GradientsOfPagesHaveTheBitsOfCpp) {
  const Tensor q = numbers({2, 2, 3, 16}, 1), k = numbers({5, 2, 4, 16}, 2),
               v = numbers({5, 2, 4, 8}, 3), d_out = numbers({2, 2, 3, 8}, 4);
  const Tensor table = Tensor::from<std::int32_t>({4, 1, 0, 4, 3, -1}, {2, 3});  // 4 is shared
  const Tensor lengths = Tensor::from<std::int64_t>({11, 7}, {2});
  AuxOutput aux;
  const PagedKeys all{k, v, table, lengths};
  const Tensor out =
      flex_attention(q, all, {.score_mod = alibi, .return_aux = {.lse = true}, .aux = &aux});
  const AttentionGradients wanted = flex_attention_backward(
      PagedBackwardInputs{.q = q, .keys = all, .out = out, .lse = *aux.lse, .d_out = d_out},
      {.forward = {.score_mod = alibi}});
  Tensor d_k(k.shape(), DType::f32), d_v(v.shape(), DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v),
                     c_table = c_tensor(table), c_lengths = c_tensor(lengths),
                     c_out = c_tensor(out), c_lse = c_tensor(*aux.lse), c_d_out = c_tensor(d_out),
                     c_d_k = c_tensor(d_k), c_d_v = c_tensor(d_v);
  auto keys = sized<quire_paged_keys>();
  keys.k = &c_k;
  keys.v = &c_v;
  keys.page_table = &c_table;
  keys.lengths = &c_lengths;
  auto problem = sized<quire_attention_problem>();
  problem.q = &c_q;
  problem.pages = &keys;
  problem.score_mod = score;
  auto loss = sized<quire_loss>();
  loss.out = &c_out;
  loss.lse = &c_lse;
  loss.d_out = &c_d_out;
  auto gradients = sized<quire_gradients>();
  gradients.k = &c_d_k;
  gradients.v = &c_d_v;
  ASSERT_EQ(quire_attention_backward(&problem, &loss, &gradients), QUIRE_OK) << quire_last_error();
  expect_same_bits(d_k, *wanted.k);
  expect_same_bits(d_v, *wanted.v);
}

TEST_F(CApiLayouts, DenseGradientsHaveTheBitsOfCpp) {
  const Tensor q = numbers({1, 2, 21, 16}, 1), k = numbers({1, 2, 33, 16}, 2),
               v = numbers({1, 2, 33, 8}, 3), d_out = numbers({1, 2, 21, 8}, 4);
  AuxOutput aux;
  const Tensor out =
      flex_attention(q, k, v, {.score_mod = alibi, .return_aux = {.lse = true}, .aux = &aux});
  const AttentionGradients wanted = flex_attention_backward(
      BackwardInputs{.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out},
      {.forward = {.score_mod = alibi}});
  // One of them into memory with other strides.
  Tensor d_q({1, 2, 21, 16}, DType::f32), d_k({1, 33, 2, 16}, DType::f32),
      d_slopes({2}, DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v), c_out = c_tensor(out),
                     c_lse = c_tensor(*aux.lse), c_d_out = c_tensor(d_out), c_d_q = c_tensor(d_q),
                     c_d_k = c_tensor(d_k.view().transpose(1, 2)), c_slopes = c_tensor(d_slopes);
  auto loss = sized<quire_loss>();
  loss.out = &c_out;
  loss.lse = &c_lse;
  loss.d_out = &c_d_out;
  const char* name = "slopes";
  const quire_tensor* place = &c_slopes;
  auto gradients = sized<quire_gradients>();
  gradients.q = &c_d_q;
  gradients.k = &c_d_k;
  gradients.buffer_names = &name;
  gradients.buffers = &place;
  gradients.buffer_count = 1;
  auto options = sized<quire_flex_attention_options>();
  options.score_mod = score;
  ASSERT_EQ(quire_flex_attention_backward(&c_q, &c_k, &c_v, &options, &loss, &gradients), QUIRE_OK)
      << quire_last_error();
  expect_same_bits(d_q, *wanted.q);
  expect_same_bits(contiguous(d_k.view().transpose(1, 2)), *wanted.k);
  expect_same_bits(d_slopes, wanted.of("slopes"));

  // Nobody has to ask for the gradients of all buffers, or for any other.
  gradients.q = gradients.k = nullptr;
  std::fill_n(d_slopes.data_as<float>(), 2, 7.0f);
  ASSERT_EQ(quire_flex_attention_backward(&c_q, &c_k, &c_v, &options, &loss, &gradients), QUIRE_OK);
  expect_same_bits(d_slopes, wanted.of("slopes"));
  gradients.buffer_count = 0;
  gradients.k = &c_k;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_flex_attention_backward] the gradient of k must not share memory with k",
                quire_flex_attention_backward(&c_q, &c_k, &c_v, &options, &loss, &gradients));
  const char* names[] = {"slopes", "slopes"};
  const quire_tensor* places[] = {&c_slopes, &c_slopes};
  gradients.k = nullptr;
  gradients.buffer_names = names;
  gradients.buffers = places;
  gradients.buffer_count = 2;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_flex_attention_backward] gradients.buffer_names must name a buffer once; "
                "got 'slopes' twice",
                quire_flex_attention_backward(&c_q, &c_k, &c_v, &options, &loss, &gradients));
  gradients.buffer_names = &name;
  gradients.buffers = &place;
  gradients.buffer_count = 1;

  name = "slope";
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_flex_attention_backward] the score mod reads no buffer with wants_gradient "
                "of this name; got 'slope'",
                quire_flex_attention_backward(&c_q, &c_k, &c_v, &options, &loss, &gradients));
  gradients.buffer_count = 0;
  gradients.q = &c_d_k;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_flex_attention_backward] gradients.q must be f32 [1, 2, 21, 16]; got f32 "
                "[1, 2, 33, 16]",
                quire_flex_attention_backward(&c_q, &c_k, &c_v, &options, &loss, &gradients));
}

TEST_F(CApiLayouts, JaggedGradientsHaveTheBitsOfCpp) {
  const Tensor values = numbers({20, 2, 16}, 5), d_out = numbers({20, 2, 16}, 6);
  const Tensor offsets = Tensor::from<std::int64_t>({0, 7, 7, 20}, {4});
  const Jagged batch{.values = values, .offsets = offsets};
  AuxOutput aux;
  const JaggedAttentionOptions forward{.score_mod = alibi, .mask_mod = mods::causal()};
  JaggedAttentionOptions with_lse = forward;
  with_lse.return_aux.lse = true;
  with_lse.aux = &aux;
  const Tensor out = flex_attention(batch, batch, batch, with_lse);
  const AttentionGradients wanted = flex_attention_backward(
      JaggedBackwardInputs{
          .q = batch, .k = batch, .v = batch, .out = out, .lse = *aux.lse, .d_out = d_out},
      {.forward = forward});
  Tensor d_v({20, 2, 16}, DType::f32);
  const quire_tensor c_values = c_tensor(values), c_offsets = c_tensor(offsets),
                     c_out = c_tensor(out), c_lse = c_tensor(*aux.lse), c_d_out = c_tensor(d_out),
                     c_d_v = c_tensor(d_v);
  auto c_batch = sized<quire_jagged>();
  c_batch.values = &c_values;
  c_batch.offsets = &c_offsets;
  auto options = sized<quire_jagged_attention_options>();
  options.score_mod = score;
  options.mask_mod = causal;
  auto loss = sized<quire_loss>();
  loss.out = &c_out;
  loss.lse = &c_lse;
  loss.d_out = &c_d_out;
  auto gradients = sized<quire_gradients>();
  gradients.v = &c_d_v;
  ASSERT_EQ(quire_flex_attention_jagged_backward(&c_batch, &c_batch, &c_batch, &options, &loss,
                                                 &gradients),
            QUIRE_OK)
      << quire_last_error();
  expect_same_bits(d_v, *wanted.v);
}

// One struct for every call, with dropout, forward and backward.
TEST_F(CApiLayouts, AnyProblemWithDropout) {
  const Tensor q = numbers({1, 2, 21, 16}, 1), k = numbers({1, 2, 33, 16}, 2),
               v = numbers({1, 2, 33, 16}, 3), d_out = numbers({1, 2, 21, 16}, 4);
  AuxOutput aux;
  AttentionOptions options{.score_mod = alibi,
                           .mask_mod = mods::causal(),
                           .dropout_p = 0.5,
                           .seed = 77,
                           .return_aux = {.lse = true},
                           .aux = &aux};
  const Tensor wanted = flex_attention(q, k, v, options);
  const AttentionGradients gradients = flex_attention_backward(
      {.q = q, .k = k, .v = v, .out = wanted, .lse = *aux.lse, .d_out = d_out},
      {.forward = options});
  Tensor out(wanted.shape(), DType::f32), lse({1, 2, 21}, DType::f32), d_k(k.shape(), DType::f32),
      d_slopes({2}, DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v), c_out = c_tensor(out),
                     c_lse = c_tensor(lse), c_d_out = c_tensor(d_out), c_d_k = c_tensor(d_k),
                     c_d_slopes = c_tensor(d_slopes);
  auto problem = sized<quire_attention_problem>();
  problem.q = &c_q;
  problem.k = &c_k;
  problem.v = &c_v;
  problem.score_mod = score;
  problem.mask_mod = causal;
  problem.dropout_p = 0.5;
  problem.seed = 77;
  auto outputs = sized<quire_attention_outputs>();
  outputs.out = &c_out;
  outputs.lse = &c_lse;
  ASSERT_EQ(quire_attention(&problem, &outputs), QUIRE_OK) << quire_last_error();
  expect_same_bits(out, wanted);
  expect_same_bits(lse, *aux.lse);
  auto loss = sized<quire_loss>();
  loss.out = &c_out;
  loss.lse = &c_lse;
  loss.d_out = &c_d_out;
  auto places = sized<quire_gradients>();
  const char* const names[] = {"slopes"};
  const quire_tensor* const of_buffers[] = {&c_d_slopes};
  places.k = &c_d_k;
  places.buffer_names = names;
  places.buffers = of_buffers;
  places.buffer_count = 1;
  ASSERT_EQ(quire_attention_backward(&problem, &loss, &places), QUIRE_OK) << quire_last_error();
  expect_same_bits(d_k, *gradients.k);
  expect_same_bits(d_slopes, gradients.of("slopes"));

  problem.dropout_p = 2;
  expect_failed(QUIRE_ERROR_VALUE, "[quire_attention_backward] dropout_p must be in 0..1; got 2",
                quire_attention_backward(&problem, &loss, &places));
  auto pages = sized<quire_paged_keys>();
  problem.pages = &pages;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_attention] queries and keys must be dense, jagged or paged; got several of "
                "them",
                quire_attention(&problem, &outputs));
}

TEST_F(CApiLayouts, SinksHaveTheBitsOfCpp) {
  const Tensor q = numbers({1, 2, 21, 16}, 1), k = numbers({1, 2, 33, 16}, 2),
               d_out = numbers({1, 2, 21, 16}, 4), sinks = numbers({2}, 5);
  AuxOutput aux;
  AttentionOptions options{.sinks = Buffer(sinks, {.name = "sinks", .wants_gradient = true}),
                           .lse_with_sinks = true,
                           .return_aux = {.lse = true},
                           .aux = &aux};
  const Tensor wanted = flex_attention(q, k, k, options);
  const AttentionGradients d = flex_attention_backward(
      {.q = q, .k = k, .v = k, .out = wanted, .lse = *aux.lse, .d_out = d_out},
      {.forward = options});
  Tensor out(wanted.shape(), DType::f32), lse(aux.lse->shape(), DType::f32),
      d_q(q.shape(), DType::f32), d_sinks({2}, DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_sinks = c_tensor(sinks),
                     c_out = c_tensor(out), c_lse = c_tensor(lse), c_d_out = c_tensor(d_out),
                     c_d_q = c_tensor(d_q), c_d_sinks = c_tensor(d_sinks);
  auto problem = sized<quire_attention_problem>();
  problem.q = &c_q;
  problem.k = problem.v = &c_k;
  problem.sinks = &c_sinks;
  problem.lse_with_sinks = 1;
  auto outputs = sized<quire_attention_outputs>();
  outputs.out = &c_out;
  outputs.lse = &c_lse;
  ASSERT_EQ(quire_attention(&problem, &outputs), QUIRE_OK) << quire_last_error();
  expect_same_bits(out, wanted);
  expect_same_bits(lse, *aux.lse);
  auto loss = sized<quire_loss>();
  loss.out = &c_out;
  loss.lse = &c_lse;
  loss.d_out = &c_d_out;
  auto places = sized<quire_gradients>();
  places.q = &c_d_q;
  places.sinks = &c_d_sinks;
  ASSERT_EQ(quire_attention_backward(&problem, &loss, &places), QUIRE_OK) << quire_last_error();
  expect_same_bits(d_q, *d.q);
  expect_same_bits(d_sinks, d.of("sinks"));
  problem.sinks = nullptr;
  problem.lse_with_sinks = 0;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_attention_backward] gradients.sinks is given, and there are no sinks",
                quire_attention_backward(&problem, &loss, &places));
}

}  // namespace
}  // namespace quire
