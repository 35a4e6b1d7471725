// One derivative per operation. Test support.
#include "tests/support/derivative.h"

#include <cassert>
#include <cmath>
#include <numbers>

#include "reference/arithmetic.h"

namespace quire::reference {
namespace {

double sigmoid(double x) { return float_unary(Op::kSigmoid, x); }

// Phi(x) + x * phi(x), the normal distribution and its density.
double gelu_derivative(double x) {
  const double phi = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * phi;
}

// Of x * sigmoid(2 u(x)).
double gelu_tanh_derivative(double x) {
  const double scale = std::sqrt(2 / std::numbers::pi);
  const double u = scale * (x + 0.044715 * x * x * x);
  const double slope = scale * (1 + 3 * 0.044715 * x * x);
  return sigmoid(2 * u) + x * 2 * slope * sigmoid(2 * u) * sigmoid(-2 * u);
}

// By the base: 0 for the exponent 0, where b * a^(b-1) could be 0 * inf. By the exponent: 0 for 0^b
// with b >= 0, where the limit of a^b * log(a) is 0 but for b = 0.
std::array<double, 2> power_derivatives(double a, double b, double y) {
  return {b == 0 ? 0 : b * std::pow(a, b - 1), a == 0 && b >= 0 ? 0 : y * std::log(a)};
}

}  // namespace

double unary_derivative(Op op, double x, double y) {
  switch (op) {
    case Op::kNeg:
      return -1;
    case Op::kAbs:
      return float_unary(Op::kSign, x);
    case Op::kSign:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
      return 0;
    case Op::kExp:
      return y;
    case Op::kExp2:
      return y * std::numbers::ln2;
    case Op::kExpm1:
      return std::exp(x);
    case Op::kLog:
      return 1 / x;
    case Op::kLog2:
      return 1 / (x * std::numbers::ln2);
    case Op::kLog1p:
      return 1 / (1 + x);
    case Op::kSqrt:
      return 0.5 / y;
    case Op::kRsqrt:
      return -0.5 * y * y * y;
    case Op::kSin:
      return std::cos(x);
    case Op::kCos:
      return -std::sin(x);
    case Op::kAtan:
      return 1 / (x * x + 1);
    case Op::kTanh:
      return 1 - y * y;
    case Op::kSigmoid:
      return y * sigmoid(-x);
    case Op::kErf:
      return 2 * std::numbers::inv_sqrtpi * std::exp(-x * x);
    case Op::kRelu:
      return x > 0 ? 1 : 0;
    case Op::kGelu:
      return gelu_derivative(x);
    case Op::kGeluTanh:
      return gelu_tanh_derivative(x);
    case Op::kSilu:
      return sigmoid(x) * (1 + x * sigmoid(-x));
    case Op::kSoftplus:
      return sigmoid(x);
    default:
      break;
  }
  assert(false && "not a function of one float");
  return 0;
}

std::array<double, 2> binary_derivatives(Op op, double a, double b, double y) {
  switch (op) {
    case Op::kAdd:
      return {1, 1};
    case Op::kSub:
      return {1, -1};
    case Op::kMul:
      return {b, a};
    case Op::kDiv:
      return {1 / b, -y / b};
    case Op::kFloorDiv:
      return {0, 0};
    case Op::kMod:
      return {1, -float_binary(Op::kFloorDiv, a, b)};
    case Op::kPow:
      return power_derivatives(a, b, y);
    case Op::kMin:
      return a == b ? std::array{0.5, 0.5} : std::array{a > b ? 0. : 1., a < b ? 0. : 1.};
    case Op::kMax:
      return a == b ? std::array{0.5, 0.5} : std::array{a < b ? 0. : 1., a > b ? 0. : 1.};
    default:
      break;
  }
  assert(false && "not an operation on two floats");
  return {0, 0};
}

std::array<double, 3> clamp_derivatives(double x, double low, double high) {
  const bool inside = low <= x && x <= high;
  const bool at_low = x < low && low < high;
  const bool at_high = x > high || high < low;
  return {inside ? 1. : 0., at_low ? 1. : 0., at_high ? 1. : 0.};
}

}  // namespace quire::reference
