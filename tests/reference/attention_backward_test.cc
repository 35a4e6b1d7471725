// Backward against central differences of forward, for everything that has a gradient, and the
// corners.
#include "tests/support/attention_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quire/function_ref.h"
#include "reference/attention.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"

namespace quire::reference {
namespace {

using testing::expect_error;
using testing::random_tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double weighted_sum(const Tensor& x, const Tensor& weights) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    // A row without keys has lse -inf, and its weight does not count.
    if (std::isfinite(x.data_as<double>()[i]))
      sum += x.data_as<double>()[i] * weights.data_as<double>()[i];
  }
  return sum;
}

// Moves each element of `x`, whose memory the loss reads, and compares.
void expect_gradient(Tensor x, const Tensor& gradient, FunctionRef<double()> loss,
                     const char* what) {
  ASSERT_EQ(gradient.shape(), x.shape()) << what;
  constexpr double kStep = 1e-5;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    double& element = x.data_as<double>()[i];
    const double kept = element;
    element = kept + kStep;
    const double above = loss();
    element = kept - kStep;
    const double below = loss();
    element = kept;
    EXPECT_NEAR(gradient.data_as<double>()[i], (above - below) / (2 * kStep), 1e-8)
        << what << " " << i;
  }
}

struct Problem {
  Tensor q, k, v, d_out, d_lse;
  AttentionInputs inputs() const { return {q, k, v}; }
  OutputGradients gradients() const { return {d_out, d_lse}; }
};

Problem make_problem(std::int64_t key_batches) {
  return {random_tensor({2, 4, 3, 5}, DType::f64, 1),
          random_tensor({key_batches, 2, 6, 5}, DType::f64, 2),
          random_tensor({key_batches, 2, 6, 2}, DType::f64, 3),
          random_tensor({2, 4, 3, 2}, DType::f64, 4), random_tensor({2, 4, 3}, DType::f64, 5)};
}

void expect_gradients(const Problem& problem, const AttentionOptions& options,
                      std::vector<std::pair<std::string, Tensor>> buffers) {
  const auto loss = [&] {
    const AttentionOutput r = attention(problem.inputs(), options);
    return weighted_sum(r.out, problem.d_out) + weighted_sum(r.lse, problem.d_lse);
  };
  const AttentionGradients g = attention_backward(problem.inputs(), options, problem.gradients());
  expect_gradient(problem.q, g.q, loss, "q");
  expect_gradient(problem.k, g.k, loss, "k");
  expect_gradient(problem.v, g.v, loss, "v");
  ASSERT_EQ(g.buffers.size(), buffers.size());
  for (const auto& [name, tensor] : buffers)
    expect_gradient(tensor, g.of(name), loss, name.c_str());
}

TEST(AttentionBackward, WithoutMods) { expect_gradients(make_problem(2), {.scale = 0.7}, {}); }

TEST(AttentionBackward, BatchesThatShareKeys) { expect_gradients(make_problem(1), {}, {}); }

TEST(AttentionBackward, ModsAndBuffers) {
  const Tensor slopes = random_tensor({4}, DType::f64, 6),
               table = random_tensor({3, 9}, DType::f64, 7);
  const Tensor left = random_tensor({3, 2, 2}, DType::f64, 8),
               right = random_tensor({6, 2, 2}, DType::f64, 9);
  const Buffer s(slopes, {.name = "slopes", .wants_gradient = true});
  const Buffer t(table, {.name = "table", .wants_gradient = true});
  const Buffer l(left, {.name = "left", .wants_gradient = true});
  const Buffer r(right, {.name = "right"});
  const ScoreMod mod = [&](auto score, auto, auto h, auto q, auto kv) {
    const auto x = score + s[h] * (kv - q) + t(q, kv - 1) + dot(l[q], r[kv]) * sum(l[q]);
    return 2.0 * tanh(x / 2.0) + where(kv > 2, score * s[h], 0.1);
  };
  const MaskMod mask = [](auto, auto h, auto q, auto kv) {
    return q + 1 >= kv && !(h == 1 && q == 2);
  };
  expect_gradients(make_problem(2), {.score_mod = mod, .mask_mod = mask},
                   {{"slopes", slopes}, {"table", table}, {"left", left}});
}

TEST(AttentionBackward, QBegin) {
  const Tensor table = random_tensor({20}, DType::f64, 6);
  const Buffer t(table, {.name = "table", .wants_gradient = true});
  const ScoreMod mod = [&](auto score, auto, auto, auto q, auto kv) {
    return score * t[q] + t[kv];
  };
  expect_gradients(make_problem(2), {.score_mod = mod, .q_begin = {7, 16}}, {{"table", table}});
}

// One query, two keys, worked out: P = 1/4, 3/4; out = 1/4 v0 + 3/4 v1.
TEST(AttentionBackward, ByHand) {
  const Tensor q = Tensor::from<double>({1}, {1, 1, 1, 1}),
               d_out = Tensor::from<double>({1}, {1, 1, 1, 1});
  const Tensor k = Tensor::from<double>({0, std::log(3.0)}, {1, 1, 2, 1});
  const Tensor v = Tensor::from<double>({4, 8}, {1, 1, 2, 1});
  const AttentionGradients g = attention_backward({q, k, v}, {.scale = 1}, {d_out});
  EXPECT_NEAR(g.v.at<double>({0, 0, 0, 0}), 0.25, 1e-15);
  EXPECT_NEAR(g.v.at<double>({0, 0, 1, 0}), 0.75, 1e-15);
  EXPECT_NEAR(g.k.at<double>({0, 0, 0, 0}), 0.25 * (4 - 7), 1e-14);
  EXPECT_NEAR(g.k.at<double>({0, 0, 1, 0}), 0.75 * (8 - 7), 1e-14);
  EXPECT_NEAR(g.q.at<double>({0, 0, 0, 0}), 0.75 * std::log(3.0), 1e-14);
}

TEST(AttentionBackward, HiddenElementsAddExactlyNothing) {
  const Problem p = make_problem(2);
  const MaskMod mask = [](auto, auto, auto q, auto kv) { return kv != 2 && q != 1; };
  const ScoreMod minus_inf = [](auto s, auto, auto, auto q, auto kv) {
    return where(kv != 2 && q != 1, s, -kInf);
  };
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 2; ++h)
      Tensor(p.k).at<double>({b, h, 2, 0}) = Tensor(p.v).at<double>({b, h, 2, 1}) = kNaN;
  for (const AttentionOptions& options :
       {AttentionOptions{.mask_mod = mask}, AttentionOptions{.score_mod = minus_inf}}) {
    const AttentionGradients g = attention_backward(p.inputs(), options, p.gradients());
    for (const Tensor& tensor : {g.q, g.k, g.v})
      for (std::int64_t i = 0; i < tensor.numel(); ++i)
        ASSERT_TRUE(std::isfinite(tensor.data_as<double>()[i])) << i;
    for (std::int64_t d = 0; d < 5; ++d) {
      EXPECT_EQ(g.k.at<double>({1, 1, 2, d}), 0);
      EXPECT_EQ(g.q.at<double>({1, 3, 1, d}), 0) << "a row with nothing to attend to";
      EXPECT_NE(g.q.at<double>({1, 3, 0, d}), 0);
    }
    EXPECT_EQ(g.v.at<double>({0, 0, 2, 0}), 0);
  }
}

TEST(AttentionBackward, BuffersOfTheMaskGetZero) {
  const Buffer limit(std::vector<float>{1.5f, 2.5f}, {.name = "limit", .wants_gradient = true});
  const Buffer slope(std::vector<float>{1}, {.name = "slope", .wants_gradient = true});
  const MaskMod mask = [&](auto, auto, auto, auto kv) { return kv < limit[0]; };
  const ScoreMod mod = [&](auto s, auto, auto, auto, auto) { return s + slope[0] + limit[1]; };
  const Problem p = make_problem(2);
  const AttentionGradients only_mask =
      attention_backward(p.inputs(), {.mask_mod = mask}, p.gradients());
  ASSERT_EQ(only_mask.buffers.size(), 1u);
  EXPECT_EQ(only_mask.of("limit").at<double>({1}), 0);
  const AttentionGradients both =
      attention_backward(p.inputs(), {.score_mod = mod, .mask_mod = mask}, {p.d_out, p.d_lse});
  ASSERT_EQ(both.buffers.size(), 2u);
  EXPECT_EQ(both.buffers[0].buffer.name(), "slope");
  EXPECT_EQ(both.buffers[1].buffer.name(), "limit");
  EXPECT_NE(both.of("limit").at<double>({1}), 0);
  EXPECT_EQ(both.of("limit").at<double>({0}), 0);
  expect_error(ErrorKind::value, "[attention] there is no gradient of a buffer 'bias'",
               [&] { both.of("bias"); });
}

TEST(AttentionBackward, EmptyKeysAndQueries) {
  const AttentionGradients no_keys = attention_backward(
      {random_tensor({1, 2, 3, 4}, DType::f64, 1), Tensor({1, 1, 0, 4}, DType::f64),
       Tensor({1, 1, 0, 2}, DType::f64)},
      {}, {random_tensor({1, 2, 3, 2}, DType::f64, 2), random_tensor({1, 2, 3}, DType::f64, 3)});
  for (std::int64_t i = 0; i < no_keys.q.numel(); ++i) EXPECT_EQ(no_keys.q.data_as<double>()[i], 0);
  const AttentionGradients no_queries = attention_backward(
      {Tensor({1, 2, 0, 4}, DType::f64), random_tensor({1, 1, 5, 4}, DType::f64, 1),
       random_tensor({1, 1, 5, 2}, DType::f64, 2)},
      {}, {Tensor({1, 2, 0, 2}, DType::f64)});
  for (std::int64_t i = 0; i < no_queries.k.numel(); ++i)
    EXPECT_EQ(no_queries.k.data_as<double>()[i], 0);
}

TEST(AttentionBackward, ShapeErrorsAndFaults) {
  const Problem p = make_problem(2);
  expect_error(ErrorKind::value,
               "[attention] the gradient of out must have shape [2, 4, 3, 2]; got [2, 4, 3]",
               [&] { attention_backward(p.inputs(), {}, {p.d_lse}); });
  expect_error(ErrorKind::value,
               "[attention] the gradient of lse must have shape [2, 4, 3]; got [2, 4, 3, 2]", [&] {
                 attention_backward(p.inputs(), {}, {p.d_out, p.d_out});
               });
  const Buffer table(std::vector<float>{1, 2}, {.name = "table", .wants_gradient = true});
  const ScoreMod mod = [&](auto s, auto, auto, auto, auto kv) { return s * table[kv]; };
  expect_error(ErrorKind::index,
               "[formula] index 2 is outside buffer 'table' of size 2 (axis 0) at b=0, h=0, "
               "q_idx=0, kv_idx=2",
               [&] { attention_backward(p.inputs(), {.score_mod = mod}, p.gradients()); });
}

}  // namespace
}  // namespace quire::reference
