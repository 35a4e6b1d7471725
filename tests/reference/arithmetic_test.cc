// The meaning of operations on plain numbers: wrapping, Python's signs, NaN and the ends of int64.
#include "reference/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire::reference {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(IntArithmetic, Wraps) {
  EXPECT_EQ(int_binary(Op::kAdd, kMax, 1), kMin);
  EXPECT_EQ(int_binary(Op::kSub, kMin, 1), kMax);
  EXPECT_EQ(int_binary(Op::kMul, kMax, 2), -2);
  EXPECT_EQ(int_unary(Op::kNeg, kMin), kMin);
  EXPECT_EQ(int_unary(Op::kAbs, kMin), kMin);
  EXPECT_EQ(int_unary(Op::kAbs, -5), 5);
  EXPECT_EQ(int_unary(Op::kSign, -5), -1);
  EXPECT_EQ(int_unary(Op::kSign, 0), 0);
  EXPECT_EQ(int_unary(Op::kBitNot, 5), -6);
}

TEST(IntArithmetic, DivisionHasPythonsSigns) {
  const struct {
    std::int64_t a, b, quotient, remainder;
  } cases[] = {{7, 2, 3, 1},
               {-7, 2, -4, 1},
               {7, -2, -4, -1},
               {-7, -2, 3, -1},
               {6, 3, 2, 0},
               {-6, 3, -2, 0},
               {0, 5, 0, 0},
               {-1, 4, -1, 3},
               {kMin, -1, kMin, 0},
               {kMin, 1, kMin, 0},
               {5, 0, 0, 0},
               {-5, 0, 0, 0},
               {kMin, kMax, -2, kMax - 1},
               {kMax, kMin, -1, -1}};
  for (const auto& c : cases) {
    EXPECT_EQ(int_binary(Op::kFloorDiv, c.a, c.b), c.quotient) << c.a << " // " << c.b;
    EXPECT_EQ(int_binary(Op::kMod, c.a, c.b), c.remainder) << c.a << " % " << c.b;
  }
}

TEST(IntArithmetic, Powers) {
  EXPECT_EQ(int_binary(Op::kPow, 3, 4), 81);
  EXPECT_EQ(int_binary(Op::kPow, -3, 3), -27);
  EXPECT_EQ(int_binary(Op::kPow, 0, 0), 1);
  EXPECT_EQ(int_binary(Op::kPow, 2, 64), 0);
  EXPECT_EQ(int_binary(Op::kPow, 3, 41), -420491770248316829);  // mod 2^64
  EXPECT_EQ(int_binary(Op::kPow, 1, kMin), 1);
  EXPECT_EQ(int_binary(Op::kPow, -1, -3), -1);
  EXPECT_EQ(int_binary(Op::kPow, -1, -4), 1);
  EXPECT_EQ(int_binary(Op::kPow, 0, -1), 0);
  EXPECT_EQ(int_binary(Op::kPow, 2, -1), 0);
}

TEST(IntArithmetic, Shifts) {
  EXPECT_EQ(int_binary(Op::kShl, 3, 2), 12);
  EXPECT_EQ(int_binary(Op::kShl, 1, 63), kMin);
  EXPECT_EQ(int_binary(Op::kShl, 1, 64), 0);
  EXPECT_EQ(int_binary(Op::kShl, 1, -1), 0);
  EXPECT_EQ(int_binary(Op::kShr, -8, 1), -4);
  EXPECT_EQ(int_binary(Op::kShr, kMin, 63), -1);
  EXPECT_EQ(int_binary(Op::kShr, -8, 64), -1);
  EXPECT_EQ(int_binary(Op::kShr, -8, -1), -1);
  EXPECT_EQ(int_binary(Op::kShr, 8, 64), 0);
}

TEST(FloatArithmetic, DivisionIsPythons) {
  const struct {
    double a, b, quotient, remainder;
  } cases[] = {{7, 2, 3, 1},         {-7, 2, -4, 1},
               {7, -2, -4, -1},      {-7, -2, 3, -1},
               {0.75, 0.5, 1, 0.25}, {-1, kInf, -1, kInf},
               {1, kInf, 0, 1},      {1, 0.1, 9, 0.09999999999999995}};
  for (const auto& c : cases) {
    EXPECT_EQ(float_binary(Op::kFloorDiv, c.a, c.b), c.quotient) << c.a << " // " << c.b;
    EXPECT_EQ(float_binary(Op::kMod, c.a, c.b), c.remainder) << c.a << " % " << c.b;
  }
  EXPECT_TRUE(std::signbit(float_binary(Op::kMod, 4, -2)));
  EXPECT_TRUE(std::isnan(float_binary(Op::kMod, 4, 0)));
  EXPECT_EQ(float_binary(Op::kFloorDiv, 4, 0), kInf);
  EXPECT_EQ(float_binary(Op::kFloorDiv, -4, 0), -kInf);
  EXPECT_TRUE(std::isnan(float_binary(Op::kFloorDiv, 0, 0)));
}

TEST(FloatArithmetic, NaNWins) {
  for (const Op op : {Op::kMin, Op::kMax}) {
    EXPECT_TRUE(std::isnan(float_binary(op, kNaN, 1)));
    EXPECT_TRUE(std::isnan(float_binary(op, 1, kNaN)));
  }
  EXPECT_TRUE(std::isnan(float_unary(Op::kSign, kNaN)));
  EXPECT_TRUE(std::isnan(float_unary(Op::kRelu, kNaN)));
  EXPECT_TRUE(std::isnan(float_unary(Op::kSoftplus, kNaN)));
  EXPECT_TRUE(compare(Op::kNe, kNaN, kNaN));
  for (const Op op : {Op::kLt, Op::kLe, Op::kGt, Op::kGe, Op::kEq})
    EXPECT_FALSE(compare(op, kNaN, kNaN));
}

TEST(FloatArithmetic, RoundsHalfToEven) {
  EXPECT_EQ(float_unary(Op::kRound, 2.5), 2);
  EXPECT_EQ(float_unary(Op::kRound, 3.5), 4);
  EXPECT_EQ(float_unary(Op::kRound, -0.5), 0);
  EXPECT_EQ(float_unary(Op::kTrunc, -1.5), -1);
  EXPECT_EQ(float_unary(Op::kFloor, -1.5), -2);
  EXPECT_EQ(float_unary(Op::kCeil, -1.5), -1);
  EXPECT_EQ(float_unary(Op::kSign, -0.0), 0);
}

// Values from tables, or of a formula that is exact at the point.
TEST(FloatArithmetic, Functions) {
  EXPECT_NEAR(float_unary(Op::kGelu, 1), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(float_unary(Op::kGelu, -1), -0.15865525393145707, 1e-16);
  EXPECT_NEAR(float_unary(Op::kGeluTanh, 1), 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * 1.044715)),
              1e-15);
  EXPECT_NEAR(float_unary(Op::kSigmoid, std::log(3.0)), 0.75, 1e-15);
  EXPECT_NEAR(float_unary(Op::kSilu, std::log(3.0)), 0.75 * std::log(3.0), 1e-15);
  EXPECT_NEAR(float_unary(Op::kSoftplus, 0), std::log(2.0), 1e-15);
  EXPECT_EQ(float_unary(Op::kSoftplus, 800), 800);
  EXPECT_EQ(float_unary(Op::kRsqrt, 4), 0.5);
  EXPECT_EQ(float_unary(Op::kExp2, -3), 0.125);
  EXPECT_EQ(float_unary(Op::kLog2, 8), 3);
  EXPECT_EQ(float_unary(Op::kRelu, -2), 0);
  EXPECT_EQ(float_unary(Op::kExpm1, 0), 0);
  EXPECT_EQ(float_unary(Op::kLog1p, -1), -kInf);
  // No cancellation where 1 + erf(x) and 1 + tanh(x) would lose everything.
  EXPECT_NEAR(float_unary(Op::kGelu, -10) / (-10 * 7.619853024160527e-24), 1, 1e-12);
  EXPECT_LT(float_unary(Op::kGeluTanh, -10), 0);
}

TEST(FloatArithmetic, ToInt) {
  EXPECT_EQ(float_to_int(-1.9), -1);
  EXPECT_EQ(float_to_int(kNaN), 0);
  EXPECT_EQ(float_to_int(kInf), kMax);
  EXPECT_EQ(float_to_int(0x1p63), kMax);
  EXPECT_EQ(float_to_int(-0x1p63), kMin);
  EXPECT_EQ(float_to_int(-kInf), kMin);
}

}  // namespace
}  // namespace quire::reference
