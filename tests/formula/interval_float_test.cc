// The interval rules of float arithmetic and functions: soundness over corner values, in f32 as f32
// computes, with functions as inexact as they may be, and how tight they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formula/bound/float_grid.h"
#include "formula/bound/interval.h"
#include "formula/bound/interval_rules.h"
#include "formula/type_rules.h"
#include "reference/arithmetic.h"
#include "tests/support/expect_interval.h"

namespace quire::formula {
namespace {

using testing::expect_floats;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Precision kF32 = Precision::kF32, kF64 = Precision::kF64;

Interval ints(std::int64_t lo, std::int64_t hi) { return Interval::ints(lo, hi); }
Interval floats(double lo, double hi, bool nan = false) { return Interval::floats(lo, hi, nan); }
Interval binary_float(Op op, const Interval& a, const Interval& b, Precision p = kF32) {
  return bound_float_binary(op, a, b, false, p);
}

// What an evaluator computes; f32 is computed as f32.
double evaluated(Op op, double x, double y, Precision precision) {
  if (precision == kF64) return reference::float_binary(op, x, y);
  const auto a = static_cast<float>(x), b = static_cast<float>(y);
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kMod: {
      const float r = std::fmod(a, b);
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case Op::kFloorDiv: {
      const float r = std::fmod(a, b);
      float q = (a - r) / b;
      if (r != 0 && (r < 0) != (b < 0)) q -= 1;
      const float down = std::floor(q);
      return q - down > 0.5f ? down + 1 : down;
    }
    default:
      return static_cast<float>(reference::float_binary(op, x, y));
  }
}

std::vector<double> corner_values(Precision precision) {
  std::vector<double> values = {-kInf, -1e38, -1e10, -2.5, -1, -0.1, -1e-42, 0,   1e-42,
                                0.1,   0.5,   1,     2,    3,  1e9,  2e38,   kInf};
  for (double& x : values) x = round_to(x, precision);
  values.insert(values.begin() + 1, -largest(precision));
  return values;
}

TEST(IntervalFloat, SoundForCornerValues) {
  for (const Precision precision : {kF32, kF64}) {
    const std::vector<double> v = corner_values(precision);
    for (const Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kFloorDiv, Op::kMod, Op::kPow,
                        Op::kMin, Op::kMax}) {
      for (std::size_t a0 = 0; a0 < v.size(); ++a0)
        for (std::size_t a1 = a0; a1 < v.size(); ++a1)
          for (std::size_t b0 = 0; b0 < v.size(); ++b0)
            for (std::size_t b1 = b0; b1 < v.size(); ++b1) {
              const Interval r =
                  binary_float(op, floats(v[a0], v[a1]), floats(v[b0], v[b1]), precision);
              ASSERT_LE(r.float_lo, r.float_hi);
              for (std::size_t i = a0; i <= a1; ++i)
                for (std::size_t j = b0; j <= b1; ++j)
                  for (const double zero : {0.0, -0.0}) {  // either sign of a zero
                    const double x = v[i] == 0 ? zero : v[i], y = v[j] == 0 ? zero : v[j];
                    ASSERT_TRUE(r.contains_float(evaluated(op, x, y, precision)))
                        << static_cast<int>(op) << " of " << x << " and " << y;
                  }
            }
    }
  }
}

TEST(IntervalFloat, EndsAreRoundedToThePrecision) {
  const Interval a = floats(0.1f, 0.1f), b = floats(0.2f, 0.3f);
  expect_floats(binary_float(Op::kAdd, a, b), 0.1f + 0.2f, 0.1f + 0.3f);
  expect_floats(binary_float(Op::kMul, a, b), 0.1f * 0.2f, 0.1f * 0.3f);
  expect_floats(binary_float(Op::kDiv, a, b), 0.1f / 0.3f, 0.1f / 0.2f);
  const double big = std::numeric_limits<float>::max();
  expect_floats(binary_float(Op::kAdd, floats(1, big), floats(1, big)), 2, kInf);
  expect_floats(binary_float(Op::kAdd, floats(1, big), floats(1, big), kF64), 2, 2 * big);
  expect_floats(bound_cast(ints((1 << 24) + 1, (1 << 24) + 3), ValueType::kFloat, kF32), 1 << 24,
                (1 << 24) + 4);
  expect_floats(bound_cast(ints(kMin, kMax), ValueType::kFloat, kF32), -0x1p63, 0x1p63);
}

TEST(IntervalFloat, NanFlags) {
  EXPECT_FALSE(binary_float(Op::kAdd, floats(-kInf, 0), floats(-kInf, 0)).maybe_nan);
  EXPECT_TRUE(binary_float(Op::kAdd, floats(-kInf, 0), floats(0, kInf)).maybe_nan);
  EXPECT_TRUE(binary_float(Op::kSub, floats(0, kInf), floats(0, kInf)).maybe_nan);
  EXPECT_TRUE(binary_float(Op::kMul, floats(0, 1), floats(0, kInf)).maybe_nan);
  EXPECT_FALSE(binary_float(Op::kMul, floats(1, 2), floats(0, kInf)).maybe_nan);
  EXPECT_TRUE(binary_float(Op::kDiv, floats(-1, 1), floats(-1, 1)).maybe_nan);
  EXPECT_FALSE(binary_float(Op::kDiv, floats(1, 2), floats(-1, 1)).maybe_nan);
  expect_floats(binary_float(Op::kDiv, floats(1, 2), floats(-1, 1)), -kInf, kInf);
  EXPECT_TRUE(binary_float(Op::kDiv, floats(1, kInf), floats(1, kInf)).maybe_nan);
  EXPECT_TRUE(bound_float_binary(Op::kSub, floats(0, kInf), floats(0, kInf), true, kF32).maybe_nan);
  expect_floats(bound_float_binary(Op::kSub, floats(0, 9), floats(0, 9), true, kF32), 0, 0);
  expect_floats(bound_float_binary(Op::kMul, floats(-kInf, 2), floats(-kInf, 2), true, kF32), 0,
                kInf);
  expect_floats(binary_float(Op::kMax, floats(0, 1, true), floats(2, 3)), 2, 3, true);
  EXPECT_TRUE(bound_float_unary(Op::kLog, floats(-1, 5), kF32).maybe_nan);
  EXPECT_FALSE(bound_float_unary(Op::kLog, floats(0, 5), kF32).maybe_nan);
  EXPECT_TRUE(bound_float_unary(Op::kSqrt, floats(-1, 4), kF32).maybe_nan);
  EXPECT_TRUE(bound_float_unary(Op::kSin, floats(0, kInf), kF32).maybe_nan);
  EXPECT_TRUE(bound_float_unary(Op::kGelu, floats(-kInf, 0), kF32).maybe_nan);
  EXPECT_TRUE(Interval::any_float().contains_float(kNan));
}

TEST(IntervalFloat, QuotientsAndRemainders) {
  expect_floats(binary_float(Op::kFloorDiv, floats(63, 65), floats(64, 64)), 0, 1);
  expect_floats(binary_float(Op::kFloorDiv, floats(-1, 5), floats(2, 4)), -1, 2);
  expect_floats(binary_float(Op::kMod, floats(64, 70), floats(64, 64)), 0, 6);
  expect_floats(binary_float(Op::kMod, floats(60, 70), floats(64, 64)), 0, 64);
  expect_floats(binary_float(Op::kMod, floats(-2, -1), floats(-4, -3)), -2, -1);
  expect_floats(binary_float(Op::kMod, floats(-1e-20, 0), floats(3, 3)), 0, 3);
  EXPECT_TRUE(binary_float(Op::kMod, floats(1, 2), floats(0, 3)).maybe_nan);
}

TEST(IntervalFloat, RoundingToIntegersIsExact) {
  expect_floats(bound_float_unary(Op::kFloor, floats(-1.5, 2.5), kF32), -2, 2);
  expect_floats(bound_float_unary(Op::kCeil, floats(-1.5, 2.5), kF32), -1, 3);
  expect_floats(bound_float_unary(Op::kRound, floats(-1.5, 2.5), kF32), -2, 2);
  expect_floats(bound_float_unary(Op::kTrunc, floats(-1.5, 2.5), kF32), -1, 2);
  expect_floats(bound_float_unary(Op::kSign, floats(-1.5, 0, true), kF32), -1, 0, true);
  expect_floats(bound_float_unary(Op::kAbs, floats(-1.5, 0.5), kF32), 0, 1.5);
  expect_floats(bound_float_unary(Op::kNeg, floats(-1.5, 0.5), kF32), -0.5, 1.5);
  expect_floats(bound_float_unary(Op::kRelu, floats(-1.5, 0.5), kF32), 0, 0.5);
}

// Each function over many intervals: what an evaluator gives that is off by 4 ulps either way.
TEST(IntervalFunctions, SoundWithFourUlpsOfError) {
  for (const Precision precision : {kF32, kF64}) {
    std::vector<double> v;
    for (const double x : {1e-42, 1e-3, 0.3, 0.75, 1.0, 1.28, 1.6, 3.2, 7.0, 19.5, 20.5, 60.0, 88.6,
                           103.0, 300.0, 709.0, 1e4, 1e20, 3e38})
      v.insert(v.end(), {round_to(-x, precision), round_to(x, precision)});
    v.insert(v.end(), {-kInf, 0, kInf});
    std::sort(v.begin(), v.end());
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      if (!is_float_function(op)) continue;
      for (std::size_t a = 0; a < v.size(); ++a) {
        for (std::size_t b = a; b < v.size(); ++b) {
          const Interval r = bound_float_unary(op, floats(v[a], v[b]), precision);
          for (std::size_t k = a; k <= b; ++k) {
            const double exact = round_to(reference::float_unary(op, v[k]), precision);
            ASSERT_TRUE(r.contains_float(exact)) << i << " of " << v[k] << " is " << exact;
            if (!std::isfinite(exact) || op == Op::kRelu || op == Op::kSqrt) continue;
            for (const int ulps : {-4, 4}) {
              double off = step(exact, ulps, precision);
              if (op == Op::kTanh || op == Op::kErf) off = std::clamp(off, -1.0, 1.0);
              if (op == Op::kSigmoid) off = std::clamp(off, 0.0, 1.0);
              if (op == Op::kExp || op == Op::kExp2 || op == Op::kSoftplus)
                off = std::max(off, 0.0);
              ASSERT_TRUE(r.contains_float(off)) << i << " of " << v[k] << " may be " << off;
            }
          }
        }
      }
    }
  }
}

TEST(IntervalFunctions, AsTightAsTheirErrorAllows) {
  const auto near = [](Op op, double lo, double hi, double want_lo, double want_hi) {
    const Interval r = bound_float_unary(op, floats(lo, hi), kF32);
    EXPECT_NEAR(r.float_lo, want_lo, 2e-5 * std::max(1.0, std::abs(want_lo)));
    EXPECT_NEAR(r.float_hi, want_hi, 2e-5 * std::max(1.0, std::abs(want_hi)));
    EXPECT_FALSE(r.maybe_nan);
  };
  near(Op::kExp, 0, 1, 1, std::exp(1.0));
  near(Op::kExpm1, -40, 0, -1, 0);
  near(Op::kLog, 1, 8, 0, std::log(8.0));
  near(Op::kRsqrt, 4, 16, 0.25, 0.5);
  near(Op::kTanh, -50, 50, -1, 1);
  near(Op::kSin, 0.1, 3, std::sin(0.1), 1);
  near(Op::kSin, -2, -0.5, -1, std::sin(-0.5));
  near(Op::kSin, 0.1, 0.2, std::sin(0.1), std::sin(0.2));
  near(Op::kCos, -0.5, 0.25, std::cos(0.5), 1);
  near(Op::kCos, 100, 107, -1, 1);
  near(Op::kGelu, -3, 1, -0.16997, 0.841345);
  near(Op::kGeluTanh, -3, 1, -0.17004, 0.841192);
  near(Op::kSilu, -9, 1, -0.278465, 0.731059);
  near(Op::kSoftplus, -1, 30, 0.313262, 30);
  EXPECT_EQ(bound_float_unary(Op::kTanh, floats(-50, 50), kF32).float_hi, 1);
  EXPECT_EQ(bound_float_unary(Op::kSigmoid, floats(-500, 50), kF32).float_lo, 0);
  expect_floats(bound_float_unary(Op::kSqrt, floats(2, 3), kF32), std::sqrt(2.0f), std::sqrt(3.0f));
  EXPECT_GT(bound_float_unary(Op::kExp, floats(80, 80), kF32).float_lo, 1e34);
  EXPECT_EQ(bound_float_unary(Op::kExp, floats(0, 90), kF32).float_hi, kInf);
}

TEST(IntervalFloat, StepsAlongTheGrid) {
  EXPECT_EQ(step(1, 1, kF32), 1 + 0x1p-23);
  EXPECT_EQ(step(1, -1, kF64), 1 - 0x1p-53);
  EXPECT_EQ(step(0, 1, kF32), 0x1p-149);
  EXPECT_EQ(step(0x1p-149, -2, kF32), -0x1p-149);
  EXPECT_EQ(step(-0.0, -1, kF64), -0x1p-1074);
  EXPECT_EQ(step(largest(kF32), 3, kF32), kInf);
  EXPECT_EQ(step(-kInf, -1, kF64), -kInf);
}

}  // namespace
}  // namespace quire::formula
