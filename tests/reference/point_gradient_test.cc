// The reverse sweep: shared nodes, choices, reads of buffers; central differences over the score
// and every element.
#include "tests/support/point_gradient.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formula/build.h"
#include "tests/reference/trace.h"

namespace quire::reference {
namespace {

using testing::trace;

struct Result {
  double d_score;
  BufferGradients buffers;
};

Result gradient_at(const Formula& f, const Point& point) {
  Evaluator evaluator(f);
  evaluator.run(point);
  Result result{0, zero_gradients(f.graph(), WhichBuffers::kAllFloats)};
  result.d_score = PointGradient(f.graph()).sweep(evaluator, 1, result.buffers);
  return result;
}

TEST(PointGradient, SharedNodesAddUp) {
  const Formula f = trace([](auto s, auto, auto, auto, auto) { return s * s + exp(s * s); });
  EXPECT_DOUBLE_EQ(gradient_at(f, {.score = 0.5}).d_score, 2 * 0.5 * (1 + std::exp(0.25)));
}

TEST(PointGradient, IntegersAndConstantsHaveNone) {
  const Formula f = trace([](auto s, auto, auto, auto q, auto) {
    return to_float(to_int(s)) + where(s > 0.0, 3.0, 4.0) + q;
  });
  EXPECT_EQ(gradient_at(f, {.q_idx = 3, .score = 0.5}).d_score, 0);
  const Formula not_float = trace([](auto s, auto, auto, auto, auto) { return to_int(s); });
  EXPECT_EQ(gradient_at(not_float, {.score = 0.5}).d_score, 0);
}

TEST(PointGradient, WherePassesOnlyToTheBranchTaken) {
  const Formula f =
      trace([](auto s, auto, auto, auto q, auto) { return where(q > 0, s, sqrt(s * 0.0)); });
  EXPECT_EQ(gradient_at(f, {.q_idx = 1, .score = 3}).d_score, 1)
      << "the other branch's slope is inf";
}

TEST(PointGradient, WhatIsNotChosenGetsNothingOfAnInfiniteSlope) {
  const Formula f = trace([](auto s, auto, auto, auto, auto) { return sqrt(minimum(s, 0.0)); });
  EXPECT_EQ(gradient_at(f, {.score = 3}).d_score, 0);
}

TEST(PointGradient, LoadsSumsAndDots) {
  const Buffer a(Tensor::from<double>({1, 2, 3, 4}, {2, 2}));
  const Buffer b(Tensor::from<float>({5, 6, 7, 8}, {2, 2}));
  const Buffer ints(Tensor::from<std::int32_t>({1, 2}));
  const Formula f = trace([&](auto s, auto, auto, auto q, auto kv) {
    return s * a(q, kv) + 10.0 * sum(b[q]) + 100.0 * dot(a[q], b[kv]) + ints[q];
  });
  const Result r = gradient_at(f, {.q_idx = -1, .kv_idx = 0, .score = 0.5});
  EXPECT_EQ(r.d_score, 3);
  EXPECT_EQ(r.buffers[0], (std::vector<double>{0, 0, 0.5 + 500, 600}));
  EXPECT_EQ(r.buffers[1], (std::vector<double>{300, 400, 10, 10}));
  EXPECT_TRUE(r.buffers[2].empty());
}

TEST(PointGradient, ADotWithItselfCountsTwice) {
  const Buffer a(Tensor::from<double>({1, 2, 3}));
  const Formula f = trace(
      [&](auto, auto, auto, auto, auto) { return dot(BufferSlice(a, {}), BufferSlice(a, {})); });
  EXPECT_EQ(gradient_at(f, {}).buffers[0], (std::vector<double>{2, 4, 6}));
}

TEST(PointGradient, OnlyTheBuffersThatWantIt) {
  const Buffer a(std::vector<float>{1}, {.name = "a"});
  const Buffer b(std::vector<float>{2}, {.name = "b", .wants_gradient = true});
  const Formula f = trace([&](auto, auto, auto, auto q, auto) { return a[q] * b[q]; });
  Evaluator evaluator(f);
  evaluator.run({});
  BufferGradients gradients = zero_gradients(f.graph(), WhichBuffers::kWantGradient);
  PointGradient(f.graph()).sweep(evaluator, 3, gradients);
  EXPECT_TRUE(gradients[0].empty());
  EXPECT_EQ(gradients[1], std::vector<double>{3});
}

TEST(PointGradient, MatchesCentralDifferences) {
  Tensor table = Tensor::from<double>({0.3, -0.8, 1.2, 0.9, -0.2, 0.5}, {2, 3});
  const Buffer t(table);
  const Formula f = trace([&](auto s, auto, auto h, auto q, auto kv) {
    const auto x = s * t(h, 0) + tanh(t(h, q) * (kv - q));
    return where(x > 0.0, x * silu(x), softplus(x) / (1.0 + x * x)) +
           maximum(s, t(h, 1)) * sum(t[h]);
  });
  const double step = 1e-6;
  const Point point{.h = 1, .q_idx = 2, .kv_idx = 5, .score = 0.7};
  const Result r = gradient_at(f, point);
  const auto value = [&](double score) {
    Point moved = point;
    moved.score = score;
    return Evaluator(f).run(moved).f;
  };
  EXPECT_NEAR(r.d_score, (value(0.7 + step) - value(0.7 - step)) / (2 * step), 1e-8);
  for (std::size_t i = 0; i < 6; ++i) {
    double& element = table.data_as<double>()[i];
    const double kept = element;
    element = kept + step;
    const double above = value(0.7);
    element = kept - step;
    const double below = value(0.7);
    element = kept;
    EXPECT_NEAR(r.buffers[0][i], (above - below) / (2 * step), 1e-8) << i;
  }
}

TEST(PointGradient, DeepFormulasNeedNoStack) {
  formula::Graph graph;
  formula::NodeId id = make_leaf(graph, Op::kScore);
  const formula::NodeId score = id;
  for (int i = 0; i < 60000; ++i) id = make_binary(graph, Op::kAdd, id, score);
  EXPECT_EQ(gradient_at(Formula(graph, id), {.score = 1}).d_score, 60001);
}

}  // namespace
}  // namespace quire::reference
