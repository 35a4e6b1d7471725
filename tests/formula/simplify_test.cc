// Each rule once, each non-rule that looks like one, folding in both precisions. That rules never
// change a value: simplify_property.cc.
#include "formula/simplify.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "formula/build.h"
#include "quire/mod.h"

namespace quire::formula {
namespace {

const NamedBuffers& buffers() {
  // One set for all: equal formulas read the same buffers.
  static const NamedBuffers all = {{"x", Buffer(std::vector<float>(8), {.name = "x"})},
                                   {"y", Buffer(std::vector<float>(8), {.name = "y"})},
                                   {"n", Buffer(std::vector<std::int64_t>(8), {.name = "n"})},
                                   {"m", Buffer(std::vector<std::int64_t>(8), {.name = "m"})}};
  return all;
}

Formula parse(const std::string& text) { return Formula::parse(text, buffers()); }

struct Rule {
  std::string before, after;
};

void expect_rules(const std::vector<Rule>& rules, Precision precision = Precision::kF32) {
  for (const auto& [before, after] : rules) {
    const Formula simple = simplify(parse(before), precision);
    EXPECT_EQ(simple, parse(after))
        << before << " became " << simple.to_string() << ", not " << parse(after).to_string();
  }
}

void expect_unchanged(const std::vector<std::string>& texts,
                      Precision precision = Precision::kF32) {
  for (const std::string& text : texts) expect_rules({{text, text}}, precision);
}

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

TEST(Simplify, IntWraps) {
  expect_rules({{"9223372036854775807 + 1", "-9223372036854775808"},
                {"n[b] + 9223372036854775807 + 1", "n[b] + -9223372036854775808"},
                {"-(-9223372036854775807 - 1)", "-9223372036854775808"},
                {"(-9223372036854775807 - 1) // -1", "-9223372036854775808"},
                {"(-9223372036854775807 - 1) % 3", "1"},
                {"abs(-9223372036854775807 - 1)", "-9223372036854775808"}});
}

TEST(Simplify, IntFolding) {
  expect_rules({{"-7 // 2", "-4"},
                {"-7 % 3", "2"},
                {"7 % -3", "-2"},
                {"7 // -2", "-4"},
                {"1 << 63 >> 63", "-1"},
                {"-5 >> 70", "-1"},
                {"5 >> -1", "0"},
                {"12 & 10", "8"},
                {"12 | 10", "14"},
                {"12 ^ 10", "6"},
                {"~5", "-6"},
                {"sign(-4) + abs(-4)", "3"},
                {"minimum(3, 4) * maximum(3, 4)", "12"},
                {"clamp(9, 1, 5)", "5"},
                {"int(-2.7)", "-2"},
                {"int(nan)", "0"},
                {"int(9223372036854775808.0)", "9223372036854775807"},
                {"int(1e30)", "9223372036854775807"},
                {"int(-inf)", "-9223372036854775808"},
                {"int(True) + 1", "2"},
                {"n[2 - 1]", "n[1]"}});
}

// Powers with an exponent that is constant only after simplification; build.h expands the others.
TEST(Simplify, IntPowers) {
  expect_rules({{"n[b] ** (q_idx - q_idx)", "1"},
                {"n[b] ** (q_idx - q_idx + 1)", "n[b]"},
                {"n[b] ** (q_idx - q_idx + 2)", "n[b] * n[b]"},
                {"(q_idx - q_idx + 3) ** (h - h + 4)", "81"},
                {"(q_idx - q_idx - 1) ** (h - h - 3)", "-1"},
                {"(q_idx - q_idx + 2) ** (h - h - 3)", "0"},
                {"(q_idx - q_idx) ** (h - h - 3)", "0"}});
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

TEST(Simplify, TranscendentalFunctionsAreNotFolded) {
  expect_unchanged({"exp(1.0)", "tanh(0.0)", "sin(0.0)", "log(1.0)", "rsqrt(4.0)", "sigmoid(0.0)",
                    "erf(0.0)", "gelu(0.0)", "softplus(0.0)", "2.0 ** 0.25", "5.5 % 2.0",
                    "5.5 // 2.0"});
}

double folded(const std::string& text, Precision precision) {
  const Formula simple = simplify(parse(text), precision);
  EXPECT_EQ(simple.size(), 1u) << simple.to_string();
  return simple.graph()[simple.root()].float_value();
}

TEST(Simplify, FloatFoldingRoundsToThePrecision) {
  EXPECT_EQ(folded("0.1 + 0.2", Precision::kF32), double{0.1f + 0.2f});
  EXPECT_EQ(folded("0.1 + 0.2", Precision::kF64), 0.1 + 0.2);
  EXPECT_EQ(folded("1.0 / 3.0", Precision::kF32), double{1.0f / 3.0f});
  EXPECT_EQ(folded("0.1 * 0.1", Precision::kF32), double{0.1f * 0.1f});
  EXPECT_EQ(folded("sqrt(2.0)", Precision::kF32), double{std::sqrt(2.0f)});
  EXPECT_EQ(folded("sqrt(2.0)", Precision::kF64), std::sqrt(2.0));
  EXPECT_EQ(folded("1e30 * 1e30", Precision::kF32), std::numeric_limits<double>::infinity());
  EXPECT_EQ(folded("1e30 * 1e30", Precision::kF64), 1e30 * 1e30);
  EXPECT_EQ(folded("1e-50 * 1.0", Precision::kF32), 0.0);  // the constant is 0 already
  // 2^24 + 1 and 2^53 + 1: one rounding from the integer.
  EXPECT_EQ(folded("float(16777217)", Precision::kF32), 16777216.0 + 1);  // kept as written
  EXPECT_EQ(folded("float(16777217) + -0.0", Precision::kF32), 16777216.0);
  EXPECT_EQ(folded("float(9007199791611905)", Precision::kF32), 9007200328482816.0);
  EXPECT_EQ(folded("float(9007199254740993)", Precision::kF64), 9007199254740992.0);
  EXPECT_EQ(folded("round(2.5) - round(-3.5)", Precision::kF32), 6.0);
  EXPECT_EQ(folded("floor(-0.5) + ceil(0.5) + trunc(-1.5) + sign(-3.0)", Precision::kF32), -2.0);
  EXPECT_EQ(folded("clamp(7.0, 0.0, 5.0) + relu(-2.0) + abs(-1.0)", Precision::kF32), 6.0);
  EXPECT_TRUE(std::isnan(folded("minimum(1.0, nan)", Precision::kF32)));
  EXPECT_TRUE(std::isnan(folded("sqrt(-1.0)", Precision::kF64)));
}

TEST(Simplify, FloatFoldingKeepsTheSignOfZero) {
  EXPECT_TRUE(std::signbit(folded("-1.0 * 0.0", Precision::kF32)));
  EXPECT_TRUE(std::signbit(folded("ceil(-0.5)", Precision::kF32)));
  EXPECT_FALSE(std::signbit(folded("sign(-0.0)", Precision::kF32)));
  EXPECT_FALSE(std::signbit(folded("0.0 - 0.0", Precision::kF32)));
  // Which zero wins is the kernels' choice.
  expect_unchanged(
      {"minimum(0.0, -0.0)", "maximum(-0.0, 0.0)", "relu(-0.0)", "clamp(-0.0, 0.0, 1.0)"});
}

TEST(Simplify, ComparisonsOfConstants) {
  expect_rules({{"3 < 4", "True"},
                {"0.1 == 0.10000000149011612", "True"},
                {"nan != nan", "True"},
                {"nan == nan", "False"},
                {"-0.0 == 0.0", "True"},
                {"bool(1e-50 * 1.0)", "False"}});
  expect_rules({{"0.1 == 0.10000000149011612", "False"}}, Precision::kF64);
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
  EXPECT_EQ(simplify(parse("score * 0.1"), Precision::kF32).to_string(), "score * 0.1");
  EXPECT_EQ(simplify(parse("-(score * 0.1)"), Precision::kF32).to_string(), "score * -0.1");
}

TEST(Simplify, DropsBuffersThatAreNotReadAnyMore) {
  const Formula simple = simplify(parse("where(h - h == 0, score, x[h] + y[h])"), Precision::kF32);
  EXPECT_TRUE(simple.buffers().empty());
}

TEST(Simplify, SeveralValuesShareOneGraph) {
  const Formula formula = parse("(score + 0.5) * x[h] / 1.0");
  const Graph& from = formula.graph();
  const std::array<NodeId, 2> roots = {formula.root(), from.arg(from.arg(formula.root(), 0), 0)};
  Graph to;
  const std::vector<NodeId> ids = simplify_into(from, roots, Precision::kF32, to);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(Formula(to, ids[0]), parse("(score + 0.5) * x[h]"));
  EXPECT_EQ(Formula(to, ids[1]), parse("score + 0.5"));
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
  EXPECT_EQ(simplify(Formula(graph, last), Precision::kF32), parse("kv_idx + 32004000"));
}

}  // namespace
}  // namespace quire::formula
