// Operations on constants: what is folded, in which precision, and what is not.
#include "formula/simplify/fold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/formula/expect_simplify.h"

namespace quire::formula {
namespace {

using testing::expect_rules;
using testing::expect_unchanged;
using testing::rule_formula;

TEST(Fold, IntWraps) {
  expect_rules({{"9223372036854775807 + 1", "-9223372036854775808"},
                {"n[b] + 9223372036854775807 + 1", "n[b] + -9223372036854775808"},
                {"-(-9223372036854775807 - 1)", "-9223372036854775808"},
                {"(-9223372036854775807 - 1) // -1", "-9223372036854775808"},
                {"(-9223372036854775807 - 1) % 3", "1"},
                {"abs(-9223372036854775807 - 1)", "-9223372036854775808"}});
}

TEST(Fold, IntFolding) {
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
TEST(Fold, IntPowers) {
  expect_rules({{"n[b] ** (q_idx - q_idx)", "1"},
                {"n[b] ** (q_idx - q_idx + 1)", "n[b]"},
                {"n[b] ** (q_idx - q_idx + 2)", "n[b] * n[b]"},
                {"(q_idx - q_idx + 3) ** (h - h + 4)", "81"},
                {"(q_idx - q_idx - 1) ** (h - h - 3)", "-1"},
                {"(q_idx - q_idx + 2) ** (h - h - 3)", "0"},
                {"(q_idx - q_idx) ** (h - h - 3)", "0"}});
}

TEST(Fold, TranscendentalFunctionsAreNotFolded) {
  expect_unchanged({"exp(1.0)", "tanh(0.0)", "sin(0.0)", "log(1.0)", "rsqrt(4.0)", "sigmoid(0.0)",
                    "erf(0.0)", "gelu(0.0)", "softplus(0.0)", "2.0 ** 0.25", "5.5 % 2.0",
                    "5.5 // 2.0"});
}

double folded(const std::string& text, Precision precision) {
  const Formula simple = simplify(rule_formula(text), precision);
  EXPECT_EQ(simple.size(), 1u) << simple.to_string();
  return simple.graph()[simple.root()].float_value();
}

TEST(Fold, FloatFoldingRoundsToThePrecision) {
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

TEST(Fold, FloatFoldingKeepsTheSignOfZero) {
  EXPECT_TRUE(std::signbit(folded("-1.0 * 0.0", Precision::kF32)));
  EXPECT_TRUE(std::signbit(folded("ceil(-0.5)", Precision::kF32)));
  EXPECT_FALSE(std::signbit(folded("sign(-0.0)", Precision::kF32)));
  EXPECT_FALSE(std::signbit(folded("0.0 - 0.0", Precision::kF32)));
  // Which zero wins is the kernels' choice.
  expect_unchanged(
      {"minimum(0.0, -0.0)", "maximum(-0.0, 0.0)", "relu(-0.0)", "clamp(-0.0, 0.0, 1.0)"});
}

TEST(Fold, ComparisonsOfConstants) {
  expect_rules({{"3 < 4", "True"},
                {"0.1 == 0.10000000149011612", "True"},
                {"nan != nan", "True"},
                {"nan == nan", "False"},
                {"-0.0 == 0.0", "True"},
                {"bool(1e-50 * 1.0)", "False"}});
  expect_rules({{"0.1 == 0.10000000149011612", "False"}}, Precision::kF64);
}

}  // namespace
}  // namespace quire::formula
