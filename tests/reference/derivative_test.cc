// Each derivative against a central difference, and PyTorch's choices at kinks.
#include "tests/support/derivative.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formula/op_table.h"
#include "reference/arithmetic.h"

namespace quire::reference {
namespace {

using Pair = std::array<double, 2>;
using Triple = std::array<double, 3>;

constexpr double kStep = 1e-6;

void expect_slope(double derivative, double above, double below, const char* what) {
  const double slope = (above - below) / (2 * kStep);
  EXPECT_NEAR(derivative, slope, 1e-7 * (1 + std::abs(slope))) << what;
}

TEST(Derivative, UnaryMatchesDifferences) {
  for (int i = static_cast<int>(Op::kNeg); i < static_cast<int>(Op::kAdd); ++i) {
    const Op op = static_cast<Op>(i);
    if (op == Op::kNot || op == Op::kBitNot) continue;
    const std::string name(formula::display_name(op));
    for (const double x : {-3.2, -0.7, 0.3, 1.6, 4.1}) {
      const double y = float_unary(op, x);
      if (std::isnan(y)) continue;  // log and sqrt of negative numbers
      expect_slope(unary_derivative(op, x, y), float_unary(op, x + kStep),
                   float_unary(op, x - kStep), (name + " at " + std::to_string(x)).c_str());
    }
  }
}

TEST(Derivative, BinaryMatchesDifferences) {
  for (int i = static_cast<int>(Op::kAdd); i <= static_cast<int>(Op::kMax); ++i) {
    const Op op = static_cast<Op>(i);
    const std::string name(formula::display_name(op));
    for (const auto& [a, b] :
         {Pair{1.7, 0.6}, {0.4, 2.3}, {-1.7, 0.6}, {1.7, -0.6}, {-0.4, -2.3}}) {
      if (op == Op::kPow && a < 0) continue;
      const Pair d = binary_derivatives(op, a, b, float_binary(op, a, b));
      const std::string what = name + " at " + std::to_string(a) + ", " + std::to_string(b);
      expect_slope(d[0], float_binary(op, a + kStep, b), float_binary(op, a - kStep, b),
                   what.c_str());
      expect_slope(d[1], float_binary(op, a, b + kStep), float_binary(op, a, b - kStep),
                   what.c_str());
    }
  }
}

TEST(Derivative, Kinks) {
  EXPECT_EQ(unary_derivative(Op::kAbs, 0, 0), 0);
  EXPECT_EQ(unary_derivative(Op::kRelu, 0, 0), 0);
  EXPECT_EQ(unary_derivative(Op::kSign, 0, 0), 0);
  EXPECT_EQ(unary_derivative(Op::kFloor, 2, 2), 0);
  EXPECT_EQ(unary_derivative(Op::kSqrt, 0, 0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(binary_derivatives(Op::kMax, 2, 2, 2), (Pair{0.5, 0.5}));
  EXPECT_EQ(binary_derivatives(Op::kMin, 2, 2, 2), (Pair{0.5, 0.5}));
  EXPECT_EQ(binary_derivatives(Op::kMod, -7, 2, 1), (Pair{1, 4}));
  EXPECT_EQ(binary_derivatives(Op::kFloorDiv, -7, 2, -4), (Pair{0, 0}));
}

TEST(Derivative, Powers) {
  EXPECT_EQ(binary_derivatives(Op::kPow, 0, 0, 1), (Pair{0, 0}));
  EXPECT_EQ(binary_derivatives(Op::kPow, 0, 3, 0), (Pair{0, 0}));
  EXPECT_EQ(binary_derivatives(Op::kPow, -2, 3, -8)[0], 12);
  EXPECT_TRUE(std::isnan(binary_derivatives(Op::kPow, -2, 3, -8)[1]));
}

TEST(Derivative, Clamp) {
  EXPECT_EQ(clamp_derivatives(0, -1, 1), (Triple{1, 0, 0}));
  EXPECT_EQ(clamp_derivatives(-1, -1, 1), (Triple{1, 0, 0})) << "the ends belong to x";
  EXPECT_EQ(clamp_derivatives(1, -1, 1), (Triple{1, 0, 0}));
  EXPECT_EQ(clamp_derivatives(-2, -1, 1), (Triple{0, 1, 0}));
  EXPECT_EQ(clamp_derivatives(2, -1, 1), (Triple{0, 0, 1}));
  EXPECT_EQ(clamp_derivatives(0, 1, -1), (Triple{0, 0, 1})) << "crossed ends: the high one wins";
}

}  // namespace
}  // namespace quire::reference
