// Derivatives operation by operation: against central differences, at kinks, and the sites of reads
// as formulas. Random formulas are in differentiate_property.cc.
#include "formula/gradient/differentiate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "formula/build.h"
#include "quire/error.h"
#include "reference/evaluate.h"
#include "tests/formula/site_gradients.h"
#include "tests/support/expect_error.h"

namespace quire::formula {
namespace {

using reference::Evaluator;
using reference::Point;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const NamedBuffers& buffers() {
  // One set for all: equal formulas read the same buffers. `still` wants no gradient.
  static const NamedBuffers all = [] {
    NamedBuffers made;
    const auto add = [&](const std::string& name, Tensor tensor, bool wants_gradient) {
      made.emplace_back(name, Buffer(std::move(tensor), {name, wants_gradient}));
    };
    add("x", Tensor::from({0.5, -1.25, 2.0, 3.0}), true);
    add("bias", Tensor::from({0.5f, -1.25f, 2.0f, 3.0f}), true);
    add("table", Tensor::from({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f}), true);
    add("pos", Tensor::from({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {2, 3}), true);
    add("w", Tensor::from({10.0f, 20.0f}), true);
    add("type", Tensor::from<std::int64_t>({0, 1, 1, 0, 1, 0, 0, 1}, {2, 2, 2}), false);
    add("q_rope", Tensor::from({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {2, 3}), true);
    add("k_rope", Tensor::from({7.0f, 8.0f, 9.0f, 1.0f, 2.0f, 3.0f}, {2, 3}), true);
    add("still", Tensor::from({1.5f, 2.5f}), false);
    add("counts", Tensor::from<std::int64_t>({1, 2, 3}), false);
    return made;
  }();
  return all;
}

Formula parse(const std::string& text) { return Formula::parse(text, buffers()); }

Derivatives derive(const std::string& text, GradientBuffers which = GradientBuffers::kMarked) {
  return differentiate(parse(text), Precision::kF64, which);
}

// d(text)/d(score) at a score, by the derivative formula.
double slope(const std::string& text, double score, Point point = {}) {
  const Derivatives d = derive(text);
  point.score = score;
  return Evaluator(d.formula(d.d_score)).run(point).f;
}

void expect_d_score(const std::string& text, const std::string& expected) {
  const Derivatives d = derive(text);
  EXPECT_EQ(d.formula(d.d_score), parse(expected))
      << text << ": " << d.formula(d.d_score).to_string() << ", not " << expected;
}

double central_difference(const std::string& text, double score) {
  Evaluator values(parse(text));
  const auto difference = [&](double step) {
    return (values.run({.score = score + step}).f - values.run({.score = score - step}).f) /
           (2 * step);
  };
  return (4 * difference(0x1p-12) - difference(0x1p-11)) / 3;
}

TEST(Differentiate, FunctionsMatchCentralDifferences) {
  const std::vector<double> anywhere = {-3.7, -1.3, -0.4, 0.3, 0.9, 2.6};
  const std::vector<double> positive = {0.2, 0.7, 1.0, 1.9, 5.5};
  struct Case {
    std::string text;
    const std::vector<double>& scores;
  };
  const std::vector<Case> cases = {
      {"-score", anywhere},
      {"abs(score)", anywhere},
      {"exp(score)", anywhere},
      {"exp2(score)", anywhere},
      {"expm1(score)", anywhere},
      {"log(score)", positive},
      {"log2(score)", positive},
      {"log1p(score)", positive},
      {"sqrt(score)", positive},
      {"rsqrt(score)", positive},
      {"sin(score)", anywhere},
      {"cos(score)", anywhere},
      {"tanh(score)", anywhere},
      {"sigmoid(score)", anywhere},
      {"erf(score)", anywhere},
      {"relu(score)", anywhere},
      {"gelu(score)", anywhere},
      {"gelu_tanh(score)", anywhere},
      {"silu(score)", anywhere},
      {"softplus(score)", anywhere},
      {"score + 2.0 * score", anywhere},
      {"2.0 - score", anywhere},
      {"score * score", anywhere},
      {"score / 3.0", anywhere},
      {"3.0 / score", anywhere},
      {"(score + 1.0) / (score * score + 2.0)", anywhere},
      {"score % 0.7", anywhere},
      {"7.0 % (score * score + 0.3)", anywhere},
      {"score // 0.7", anywhere},
      {"score ** 2.5", positive},
      {"score ** -3.0", anywhere},
      {"2.5 ** score", anywhere},
      {"score ** score", positive},
      {"minimum(score, 0.5)", anywhere},
      {"minimum(0.5, score)", anywhere},
      {"maximum(score, 0.5)", anywhere},
      {"maximum(0.5, score)", anywhere},
      {"clamp(score, -1.0, 1.0)", anywhere},
      {"clamp(0.1, score, 1.0)", anywhere},
      {"clamp(0.1, -1.0, score)", anywhere},
      {"where(score > 0.5, score * score, -score)", anywhere},
      {"floor(score) + ceil(score) + round(score) + trunc(score) + sign(score)", anywhere},
      {"float(int(score))", anywhere},
      {"tanh(score / 30.0) * 30.0", anywhere},
  };
  for (const Case& c : cases) {
    for (const double score : c.scores) {
      const double expected = central_difference(c.text, score);
      EXPECT_NEAR(slope(c.text, score), expected, 1e-9 * std::max(1.0, std::fabs(expected)))
          << c.text << " at " << score;
    }
  }
}

TEST(Differentiate, GeluInItsTails) {
  // Relative accuracy: 0.5 * (1 + erf(x / sqrt(2))) would have no digit left.
  EXPECT_NEAR(slope("gelu(score)", -9.0) / -9.13893737e-18, 1, 1e-8);
  for (const std::string text : {"gelu(score)", "gelu_tanh(score)"}) {
    EXPECT_EQ(slope(text, 0.0), 0.5) << text;
    EXPECT_EQ(slope(text, 5e-324), 0.5) << text;
    EXPECT_NEAR(slope(text, 1e-40), 0.5, 1e-12) << text;
    EXPECT_EQ(slope(text, 1e6), 1.0) << text;
    EXPECT_EQ(slope(text, -1e6), 0.0) << text;
  }
}

TEST(Differentiate, Kinks) {
  EXPECT_EQ(slope("abs(score)", 0.0), 0.0);
  EXPECT_EQ(slope("relu(score)", 0.0), 0.0);
  EXPECT_EQ(slope("sign(score)", 0.0), 0.0);
  EXPECT_EQ(slope("floor(score)", 1.0), 0.0);
  EXPECT_EQ(slope("maximum(score, 1.0)", 1.0), 0.5);
  EXPECT_EQ(slope("maximum(1.0, score)", 1.0), 0.5);
  EXPECT_EQ(slope("minimum(score, 1.0)", 1.0), 0.5);
  EXPECT_EQ(slope("minimum(1.0, score)", 1.0), 0.5);
  EXPECT_EQ(slope("maximum(score, 3.0 * score)", 0.0), 2.0);
  EXPECT_EQ(slope("clamp(score, -1.0, 1.0)", 1.0), 1.0);
  EXPECT_EQ(slope("clamp(score, -1.0, 1.0)", -1.0), 1.0);
  EXPECT_EQ(slope("clamp(2.0, score, 3.0)", 2.0), 0.0);
  EXPECT_EQ(slope("clamp(2.0, 1.0, score)", 2.0), 0.0);
  EXPECT_EQ(slope("clamp(2.0, score, 3.0)", 3.0), 0.0);
  EXPECT_EQ(slope("clamp(2.0, 3.0, score)", 2.5), 1.0);  // the high end wins over the low one
  EXPECT_EQ(slope("clamp(2.0, score, 1.0)", 3.0), 0.0);
  EXPECT_EQ(slope("where(score > 1.0, 2.0 * score, 3.0 * score)", 1.0), 3.0);
}

TEST(Differentiate, Powers) {
  EXPECT_EQ(slope("score ** x[0]", 0.0), kInfinity);  // 0.5 / sqrt(0)
  EXPECT_EQ(slope("score ** (x[0] - 0.5)", 0.0), 0.0);
  EXPECT_EQ(slope("x[2] ** score", 3.0), 8 * std::log(2.0));
  EXPECT_EQ(slope("(x[0] - 0.5) ** score", 2.0), 0.0);
  EXPECT_EQ(slope("(x[0] - 0.5) ** score", 0.0), 0.0);
  EXPECT_EQ(slope("score ** 4.0", -2.0), -32.0);
}

TEST(Differentiate, FormulasAreSimple) {
  expect_d_score("score", "1.0");
  expect_d_score("score + bias[h] * (kv_idx - q_idx)", "1.0");
  expect_d_score("score * 0.125", "0.125");
  expect_d_score("score * bias[h] + bias[b]", "bias[h]");
  expect_d_score("tanh(score)", "1.0 - tanh(score) * tanh(score)");
  expect_d_score("20.0 * tanh(score / 20.0)",
                 "20.0 * (1.0 - tanh(score / 20.0) * tanh(score / 20.0)) / 20.0");
  expect_d_score("where(q_idx >= kv_idx, score, -inf)", "where(q_idx >= kv_idx, 1.0, 0.0)");
  expect_d_score("exp(score)", "exp(score)");
  expect_d_score("relu(score)", "where(score > 0.0, 1.0, 0.0)");
  expect_d_score("abs(score)", "sign(score)");
}

TEST(Differentiate, WithoutTheScore) {
  expect_d_score("bias[h] * 2.0", "0.0");
  expect_d_score("where(score > 0.0, 1.0, 2.0)", "0.0");
  expect_d_score("float(int(score)) + floor(score)", "0.0");
  expect_d_score("q_idx - kv_idx", "0.0");
  expect_d_score("score > 3.0", "0.0");
  expect_d_score("int(score)", "0.0");
}

TEST(Differentiate, StructuralZerosDoNotSpread) {
  // As 0.0 * (1 / sqrt(0)) they would be NaN.
  EXPECT_EQ(slope("score + floor(sqrt(score))", 0.0), 1.0);
  EXPECT_EQ(slope("score + where(sqrt(score) > 1.0, 2.0, 3.0)", 0.0), 1.0);
  EXPECT_EQ(slope("score + bias[int(sqrt(score))]", 0.0), 1.0);
}

TEST(Differentiate, BranchesNotTaken) {
  EXPECT_EQ(slope("where(score > 0.0, log(score), 2.0 * score)", 4.0), 0.25);
  EXPECT_EQ(slope("where(score > 0.0, 2.0 * score, log(-score))", -4.0), -0.25);
}

// As in PyTorch; the header says so.
TEST(Differentiate, ZeroTimesInfinityInABranchNotTakenIsNaN) {
  EXPECT_TRUE(std::isnan(slope("where(score > 0.0, sqrt(score), 0.0)", 0.0)));
  EXPECT_EQ(slope("where(score > 0.0, sqrt(where(score > 0.0, score, 1.0)), 0.0)", 0.0), 0.0);
}

struct ExpectedSite {
  std::string node, factor;
  int side = 0;
};

void expect_sites(const std::string& text, const std::vector<ExpectedSite>& expected,
                  GradientBuffers which = GradientBuffers::kMarked) {
  const Derivatives d = derive(text, which);
  ASSERT_EQ(d.sites.size(), expected.size()) << text;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Derivatives::Site& site = d.sites[i];
    EXPECT_EQ(d.formula(site.node), parse(expected[i].node))
        << text << ": " << d.formula(site.node).to_string();
    EXPECT_EQ(d.formula(site.factor), parse(expected[i].factor))
        << text << ": " << d.formula(site.factor).to_string();
    EXPECT_EQ(site.side, expected[i].side) << text;
    EXPECT_EQ(site.buffer, d.graph[site.node].buffers[static_cast<std::size_t>(site.side)]) << text;
  }
}

TEST(Differentiate, Sites) {
  expect_sites("score + bias[h]", {{"bias[h]", "1.0"}});
  expect_sites("score + bias[h] * (kv_idx - q_idx)", {{"bias[h]", "float(kv_idx - q_idx)"}});
  expect_sites("score + table[q_idx - kv_idx + 3]", {{"table[q_idx - kv_idx + 3]", "1.0"}});
  expect_sites("score * pos[q_idx, kv_idx]", {{"pos[q_idx, kv_idx]", "score"}});
  expect_sites("score + w[type[b, q_idx, kv_idx]]", {{"w[type[b, q_idx, kv_idx]]", "1.0"}});
  expect_sites("score + sum(pos[q_idx]) * 2.0", {{"sum(pos[q_idx])", "2.0"}});
  expect_sites("score * dot(q_rope[q_idx], k_rope[kv_idx])",
               {{"dot(q_rope[q_idx], k_rope[kv_idx])", "score", 0},
                {"dot(q_rope[q_idx], k_rope[kv_idx])", "score", 1}});
  expect_sites("dot(pos[q_idx], counts)", {{"dot(pos[q_idx], counts)", "1.0"}});
}

TEST(Differentiate, RepeatedAndNestedReads) {
  expect_sites("score * bias[h] + bias[h]", {{"bias[h]", "1.0 + score"}});
  expect_sites("bias[h] * bias[b]", {{"bias[h]", "bias[b]"}, {"bias[b]", "bias[h]"}});
  // Equal after simplification: one site.
  expect_sites("bias[h + 0] + bias[h * 1]", {{"bias[h]", "2.0"}});
  // The index is no way to a derivative, the value is.
  expect_sites("bias[int(bias[h])]", {{"bias[int(bias[h])]", "1.0"}});
  expect_sites("where(q_idx > kv_idx, bias[h], w[b]) + score",
               {{"bias[h]", "where(q_idx > kv_idx, 1.0, 0.0)"},
                {"w[b]", "where(q_idx > kv_idx, 0.0, 1.0)"}});
}

TEST(Differentiate, WhichBuffers) {
  expect_sites("score * still[b] + bias[h] + type[b, 0, 0]", {{"bias[h]", "1.0"}});
  expect_sites("score * still[b] + bias[h] + type[b, 0, 0]",
               {{"still[b]", "score"}, {"bias[h]", "1.0"}}, GradientBuffers::kAllFloats);
  expect_sites("where(bias[h] > 0.0, score, 1.0) + floor(bias[b])", {});
  expect_sites("where(1 > 2, bias[h], score)", {});
  expect_sites("score + 0.0 * bias[h]", {});
}

TEST(Differentiate, ValueIsTheSimplifiedFormula) {
  const Derivatives d = derive("score * 1.0 + bias[h + 0]");
  EXPECT_EQ(d.formula(d.value), parse("score + bias[h]"));
  EXPECT_EQ(d.graph.buffer(d.sites[0].buffer).name(), "bias");
}

// All elements at once, as a backward pass would sum them for one element of the matrix.
TEST(Differentiate, DenseGradients) {
  const Derivatives d = derive("sum(pos[q_idx]) + score * dot(q_rope[1], k_rope[kv_idx])");
  SiteGradients sites(d);
  const auto& all = sites.run({.q_idx = 1, .kv_idx = 0, .score = 2});
  const auto of = [&](const std::string& name) {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (d.graph.buffers()[i].name() == name) return all[i];
    return std::vector<double>();
  };
  EXPECT_EQ(of("pos"), (std::vector<double>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(of("q_rope"), (std::vector<double>{0, 0, 0, 14, 16, 18}));
  EXPECT_EQ(of("k_rope"), (std::vector<double>{8, 10, 12, 0, 0, 0}));
  EXPECT_EQ(sites.d_score(), 4 * 7 + 5 * 8 + 6 * 9);
}

TEST(Differentiate, BothSidesOfADotCanBeOneBuffer) {
  const Derivatives d = derive("dot(pos[0], pos[0])");
  SiteGradients sites(d);
  EXPECT_EQ(sites.run({})[0], (std::vector<double>{2, 4, 6, 0, 0, 0}));
}

Formula chain(Op op, int operations) {
  Graph graph;
  NodeId last = make_leaf(graph, Op::kScore);
  for (int i = 0; i < operations; ++i) last = make_unary(graph, op, last);
  return Formula(graph, last);
}

TEST(Differentiate, DeepFormulas) {
  const Derivatives d = differentiate(chain(Op::kSin, 10'000), Precision::kF32);
  EXPECT_EQ(Evaluator(d.formula(d.d_score)).run({.score = 0}).f, 1);
  testing::expect_error(ErrorKind::value,
                        "[formula] a formula may have at most 65536 different values",
                        [] { differentiate(chain(Op::kSin, 40'000), Precision::kF32); });
}

}  // namespace
}  // namespace quire::formula
