// Each rule once, and each non-rule that looks like one. That rules never change a value:
// simplify_property.cc. Constants: fold_test.cc.
#include "formula/simplify/simplify.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "formula/build.h"
#include "quire/mod.h"
#include "tests/formula/expect_simplify.h"

namespace quire::formula {
namespace {

using testing::expect_rules;
using testing::expect_unchanged;
using testing::rule_formula;

TEST(Simplify, IntNeutralElements) {
  expect_rules({{"n[b] + 0", "n[b]"},
                {"0 + n[b]", "n[b]"},
                {"n[b] - 0", "n[b]"},
                {"0 - n[b]", "-n[b]"},
                {"n[b] * 1", "n[b]"},
                {"-1 * n[b]", "-n[b]"},
                {"n[b] * 0", "0"},
                {"n[b] - n[b]", "0"},
                {"n[b] // 1", "n[b]"},
                {"n[b] % 1", "0"},
                {"n[b] % -1", "0"},
                {"n[b] << 0", "n[b]"},
                {"n[b] >> 0", "n[b]"},
                {"0 >> n[b]", "0"},
                {"n[b] << 64", "0"},
                {"n[b] & n[b]", "n[b]"},
                {"n[b] & 0", "0"},
                {"-1 & n[b]", "n[b]"},
                {"n[b] | n[b]", "n[b]"},
                {"n[b] | 0", "n[b]"},
                {"n[b] | -1", "-1"},
                {"n[b] ^ n[b]", "0"},
                {"0 ^ n[b]", "n[b]"},
                {"n[b] ^ -1", "~n[b]"},
                {"minimum(n[b], n[b])", "n[b]"},
                {"maximum(n[b], n[b])", "n[b]"},
                {"minimum(n[b], 9223372036854775807)", "n[b]"},
                {"maximum(9223372036854775807, n[b])", "9223372036854775807"},
                {"clamp(n[b], m[b], m[b])", "m[b]"},
                {"clamp(n[b], m[b], 9223372036854775807)", "maximum(n[b], m[b])"},
                {"1 ** n[b]", "1"}});
}

TEST(Simplify, IntSignsAndConstantsMoveOutwards) {
  expect_rules({{"--n[b]", "n[b]"},
                {"~~n[b]", "n[b]"},
                {"abs(abs(n[b]))", "abs(n[b])"},
                {"abs(-n[b])", "abs(n[b])"},
                {"sign(sign(n[b]))", "sign(n[b])"},
                {"n[b] + 3 + 4", "n[b] + 7"},
                {"n[b] + 3 - 4", "n[b] - 1"},
                {"n[b] - 3 + 3", "n[b]"},
                {"3 - n[b] + 4", "7 - n[b]"},
                {"3 - (n[b] + 4)", "-1 - n[b]"},
                {"3 - (4 - n[b])", "n[b] - 1"},
                {"3 - (-n[b])", "n[b] + 3"},
                {"n[b] + -3", "n[b] - 3"},
                {"n[b] - -3", "n[b] + 3"},
                {"-(n[b] - 3)", "3 - n[b]"},
                {"-(n[b] + 3)", "-3 - n[b]"},
                {"-(3 - n[b])", "n[b] - 3"},
                {"-(n[b] - m[b])", "m[b] - n[b]"},
                {"n[b] + -m[b]", "n[b] - m[b]"},
                {"-n[b] + m[b]", "m[b] - n[b]"},
                {"n[b] - -m[b]", "n[b] + m[b]"},
                {"n[b] + (m[b] - n[b])", "m[b]"},
                {"n[b] - (n[b] - m[b])", "m[b]"},
                {"n[b] + m[b] - n[b]", "m[b]"},
                {"n[b] * 3 * 4", "n[b] * 12"},
                {"-(n[b] * 3)", "n[b] * -3"},
                {"3 * -n[b]", "n[b] * -3"},
                {"-n[b] * -m[b]", "n[b] * m[b]"}});
}

TEST(Simplify, AffineValuesThatAreSomethingSimple) {
  expect_rules({{"q_idx + kv_idx - q_idx", "kv_idx"},
                {"3 * (q_idx - kv_idx) + 3 * kv_idx - 2 * q_idx", "q_idx"},
                {"(q_idx + 1) - (q_idx - 4)", "5"},
                {"~(-1 - h)", "h"},
                {"2 * (b + h) - (h << 1) - b", "b"}});
}

TEST(Simplify, IntThatStays) {
  expect_unchanged({"n[b] // 0", "n[b] % 0", "5 // 0", "0 // n[b]", "n[b] // n[b]", "n[b] >> 64",
                    "q_idx // 4", "2 * q_idx - kv_idx", "b - q_idx", "n[b] * 2", "n[b] ** 4",
                    "n[b] ** m[b]", "minimum(n[b], 5)", "int(float(n[b]))"});
}

TEST(Simplify, FloatIdentities) {
  expect_rules({{"score * 1.0", "score"},
                {"1.0 * score", "score"},
                {"score * -1.0", "-score"},
                {"score / 1.0", "score"},
                {"score / -1.0", "-score"},
                {"score - 0.0", "score"},
                {"score + -0.0", "score"},
                {"-0.0 + score", "score"},
                {"-0.0 - score", "-score"},
                {"--score", "score"},
                {"abs(abs(score))", "abs(score)"},
                {"abs(-score)", "abs(score)"},
                {"x[h] - (-score)", "x[h] + score"},
                {"x[h] + (-score)", "x[h] - score"},
                {"-x[h] + score", "score - x[h]"},
                {"-x[h] * -score", "x[h] * score"},
                {"-x[h] / -score", "x[h] / score"},
                {"-score * 0.1", "score * -0.1"},
                {"-(score * 0.1)", "score * -0.1"},
                {"-(0.1 / score)", "-0.1 / score"},
                {"0.1 / -score", "-0.1 / score"},
                {"-score / 0.1", "score / -0.1"},
                {"minimum(score, score)", "score"},
                {"maximum(score, score)", "score"},
                {"minimum(score, inf)", "score"},
                {"maximum(-inf, score)", "score"},
                {"clamp(score, -inf, x[h])", "minimum(score, x[h])"},
                {"clamp(score, x[h], inf)", "maximum(score, x[h])"},
                {"relu(relu(score))", "relu(score)"},
                {"floor(floor(score))", "floor(score)"},
                {"ceil(floor(score))", "floor(score)"},
                {"round(float(n[b]))", "float(n[b])"},
                {"trunc(sign(score))", "sign(score)"},
                {"float(int(q_idx > kv_idx))", "float(q_idx > kv_idx)"},
                {"int(float(q_idx > kv_idx))", "int(q_idx > kv_idx)"},
                {"int(trunc(score))", "int(score)"}});
}

TEST(Simplify, DivisionByPowersOfTwo) {
  expect_rules({{"score / 8.0", "score * 0.125"},
                {"score / -0.25", "score * -4.0"},
                {"score / 8.507059173023462e+37", "score * 1.1754943508222875e-38"}});
  // The reciprocal of 2^127 is subnormal, that of 2^-128 is infinite, in f32.
  expect_unchanged({"score / 1.7014118346046923e+38", "score / 2.938735877055719e-39",
                    "score / 3.0", "score / 0.0", "score / inf", "8.0 / score"});
  expect_rules({{"score / 1.7014118346046923e+38", "score * 5.877471754111438e-39"},
                {"score / 2.938735877055719e-39", "score * 3.402823669209385e+38"}},
               Precision::kF64);
}

TEST(Simplify, FloatThatStays) {
  expect_unchanged({"score + 0.0", "0.0 + score", "score - -0.0", "0.0 - score", "score * 0.0",
                    "score - score", "score / score", "score + score", "score + 1.0 + 2.0",
                    "score * 2.0 * 3.0", "-(score - x[h])", "-(score * x[h])",
                    "sqrt(score * score)", "minimum(score, -inf)", "clamp(score, 1.0, 1.0)",
                    "abs(relu(score))", "score // 1.0", "score % 1.0", "score ** 4.0"});
}

TEST(Simplify, Logic) {
  expect_rules({{"q_idx > 3 and True", "q_idx > 3"},
                {"False and q_idx > 3", "False"},
                {"q_idx > 3 or True", "True"},
                {"False or q_idx > 3", "q_idx > 3"},
                {"(q_idx > 3) ^ True", "q_idx <= 3"},
                {"(q_idx > 3) ^ False", "q_idx > 3"},
                {"(q_idx > 3) & (q_idx > 3)", "q_idx > 3"},
                {"(q_idx > 3) | (q_idx > 3)", "q_idx > 3"},
                {"(q_idx > 3) ^ (q_idx > 3)", "False"},
                {"not not score > 3.0", "score > 3.0"},
                {"(score > 3.0) & ~(score > 3.0)", "False"},
                {"(score > 3.0) | ~(score > 3.0)", "True"},
                {"(score > 3.0) ^ ~(score > 3.0)", "True"},
                {"(q_idx > 3) & (q_idx <= 3)", "False"},
                {"(q_idx > 3) & ((q_idx > 3) & (h > 1))", "(q_idx > 3) & (h > 1)"},
                {"(q_idx > 3) & ((h > 1) | (q_idx > 3))", "q_idx > 3"},
                {"((q_idx > 3) & (h > 1)) | (h > 1)", "h > 1"},
                {"~(score > 3.0) ^ ~(score > 4.0)", "(score > 3.0) ^ (score > 4.0)"}});
}

TEST(Simplify, NegatedComparisons) {
  expect_rules({{"not q_idx < kv_idx", "q_idx >= kv_idx"},
                {"not q_idx <= kv_idx", "q_idx > kv_idx"},
                {"not q_idx > kv_idx", "q_idx <= kv_idx"},
                {"not q_idx >= kv_idx", "q_idx < kv_idx"},
                {"not q_idx == kv_idx", "q_idx != kv_idx"},
                {"not q_idx != kv_idx", "q_idx == kv_idx"},
                {"not score == x[h]", "score != x[h]"},
                {"not score != x[h]", "score == x[h]"}});
  // A NaN is neither smaller nor not smaller.
  expect_unchanged({"not score < x[h]", "not score <= x[h]", "not score > x[h]",
                    "not score >= x[h]", "(score < 3.0) & (score >= 3.0)",
                    "(score < 3.0) | (score >= 3.0)"});
}

TEST(Simplify, ComparisonsOfEqualSides) {
  expect_rules({{"n[b] == n[b]", "True"},
                {"n[b] <= n[b]", "True"},
                {"n[b] >= n[b]", "True"},
                {"n[b] != n[b]", "False"},
                {"n[b] < n[b]", "False"},
                {"n[b] > n[b]", "False"},
                {"score < score", "False"},
                {"score > score", "False"},
                {"q_idx - kv_idx == -(kv_idx - q_idx)", "True"},
                {"(q_idx + 3) * 2 <= q_idx * 2 + 6", "True"},
                {"q_idx + 1 == q_idx", "False"},
                {"q_idx + 1 != q_idx", "True"}});
  expect_unchanged({"score == score", "score != score", "score <= score", "q_idx + 1 > q_idx"});
}

TEST(Simplify, BoolsAsNumbers) {
  expect_rules({{"bool(int(q_idx > 3))", "q_idx > 3"},
                {"bool(float(q_idx > 3))", "q_idx > 3"},
                {"bool(float(n[b]))", "bool(n[b])"},
                {"bool(-n[b])", "bool(n[b])"},
                {"bool(abs(score))", "bool(score)"},
                {"int(q_idx > 3) == 1", "q_idx > 3"},
                {"int(q_idx > 3) == 0", "q_idx <= 3"},
                {"0 < int(q_idx > 3)", "q_idx > 3"},
                {"int(q_idx > 3) < 2", "True"},
                {"float(q_idx > 3) > 1.5", "False"},
                {"float(q_idx > 3) >= 0.5", "q_idx > 3"},
                {"(q_idx > 3) != (h > 1)", "(q_idx > 3) ^ (h > 1)"}});
}

TEST(Simplify, Choices) {
  expect_rules({{"where(True, score, x[h])", "score"},
                {"where(1 > 2, score, x[h])", "x[h]"},
                {"where(q_idx > 3, score, score)", "score"},
                {"where(not score > 3.0, score, x[h])", "where(score > 3.0, x[h], score)"},
                {"where(q_idx > 3, True, False)", "q_idx > 3"},
                {"where(q_idx > 3, False, True)", "q_idx <= 3"},
                {"where(q_idx > 3, h > 1, False)", "(q_idx > 3) & (h > 1)"},
                {"where(q_idx > 3, True, h > 1)", "(q_idx > 3) | (h > 1)"},
                {"where(h > 1, where(h > 1, score, 1.0), 2.0)", "where(h > 1, score, 2.0)"},
                {"where(h > 1, 2.0, where(h > 1, 1.0, score))", "where(h > 1, 2.0, score)"}});
  expect_unchanged({"where(q_idx > 3, False, h > 1)", "where(score > 0.0, score, 0.0)",
                    "where(h > 1, where(b > 1, score, 1.0), 1.0)"});
}

TEST(Simplify, OperationsOnAChoiceBetweenConstants) {
  expect_rules({{"where(h > 1, 1.0, 0.0) * 30.0", "where(h > 1, 30.0, 0.0)"},
                {"3 - where(h > 1, 1, 5)", "where(h > 1, 2, -2)"},
                {"abs(where(h > 1, -1, 5))", "where(h > 1, 1, 5)"},
                {"float(where(h > 1, 1, 0))", "where(h > 1, 1.0, 0.0)"},
                {"where(h > 1, 1, 0) == 1", "h > 1"},
                {"clamp(where(h > 1, 1, 9), 3, 5)", "where(h > 1, 3, 5)"},
                {"where(h > 1, 0.1, 0.2) + 0.3 < 0.45", "h > 1"}});
  expect_unchanged({"exp(where(h > 1, 1.0, 0.0))", "5 // where(h > 1, 1, 0)",
                    "where(h > 1, 1, 2) * n[b]", "where(h > 1, 1, 2) + where(b > 1, 3, 4)",
                    "where(h > 1, score, 0.0) * 2.0"});
}

TEST(Simplify, OperandsExchangedAreTheSameValue) {
  expect_rules({{"(n[b] + m[b]) * (m[b] + n[b])", "(n[b] + m[b]) * (n[b] + m[b])"},
                {"(x[h] * score) + (score * x[h])", "(x[h] * score) + (x[h] * score)"},
                {"(q_idx < kv_idx) & (kv_idx > q_idx)", "q_idx < kv_idx"},
                {"(score <= x[h]) | (x[h] >= score)", "score <= x[h]"},
                {"minimum(n[b], m[b]) - minimum(m[b], n[b])", "0"}});
  expect_unchanged({"minimum(score, x[h]) + minimum(x[h], score)"});  // -0 and +0
}

TEST(Simplify, AScoreModThatDoesNothingIsTheScore) {
  const Formula simple =
      simplify(ScoreMod([](auto score, auto, auto, auto q, auto kv) {
                 return where(q - kv == -(kv - q), score * 1.0 / 1.0 - 0.0, score + 5);
               }).formula(),
               Precision::kF32);
  EXPECT_EQ(simple.size(), 1u);
  EXPECT_EQ(simple.graph()[simple.root()].op, Op::kScore);
}

TEST(Simplify, ConstantsKeepTheirText) {
  EXPECT_EQ(simplify(rule_formula("score * 0.1"), Precision::kF32).to_string(), "score * 0.1");
  EXPECT_EQ(simplify(rule_formula("-(score * 0.1)"), Precision::kF32).to_string(), "score * -0.1");
}

TEST(Simplify, DropsBuffersThatAreNotReadAnyMore) {
  const Formula simple =
      simplify(rule_formula("where(h - h == 0, score, x[h] + y[h])"), Precision::kF32);
  EXPECT_TRUE(simple.buffers().empty());
}

TEST(Simplify, SeveralValuesShareOneGraph) {
  const Formula formula = rule_formula("(score + 0.5) * x[h] / 1.0");
  const Graph& from = formula.graph();
  const std::array<NodeId, 2> roots = {formula.root(), from.arg(from.arg(formula.root(), 0), 0)};
  Graph to;
  const std::vector<NodeId> ids = simplify_into(from, roots, Precision::kF32, to);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(Formula(to, ids[0]), rule_formula("(score + 0.5) * x[h]"));
  EXPECT_EQ(Formula(to, ids[1]), rule_formula("score + 0.5"));
  EXPECT_EQ(to.arg(ids[0], 0), ids[1]);
}

// A chain of n different operations, each on the one before.
Formula chain(int operations) {
  Graph graph;
  NodeId last = make_leaf(graph, Op::kKvIdx);
  for (int i = 0; i < operations; ++i)
    last = make_binary(graph, i % 2 ? Op::kAdd : Op::kMax, last, make_leaf(graph, Op::kQIdx));
  return Formula(graph, last);
}

TEST(Simplify, DeepFormulas) {
  const Formula deep = chain(15'000);
  EXPECT_EQ(simplify(deep, Precision::kF32), deep);
  const Formula deeper = chain(60'000);
  EXPECT_EQ(simplify(deeper, Precision::kF32), deeper);  // passed through
  Graph graph;
  NodeId last = make_leaf(graph, Op::kKvIdx);
  for (int i = 1; i <= 8'000; ++i) last = make_binary(graph, Op::kAdd, last, make_int(graph, i));
  EXPECT_EQ(simplify(Formula(graph, last), Precision::kF32), rule_formula("kv_idx + 32004000"));
}

}  // namespace
}  // namespace quire::formula
