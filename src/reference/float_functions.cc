// Functions of one float, in f64. Reference layer.
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>

#include "reference/arithmetic.h"

namespace quire::reference {
namespace {

double sign(double x) {
  if (std::isnan(x)) return x;
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// x * Phi(x); erfc keeps the digits that 1 + erf loses for negative x.
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }

// 0.5 * x * (1 + tanh(u)), and 1 + tanh(u) = 2 * sigmoid(2 u) without the cancellation.
double gelu_tanh(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x * sigmoid(2 * u);
}

// log(1 + exp(x)) without the overflow.
double softplus(double x) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

double float_unary(Op op, double x) {
  switch (op) {
    case Op::kNeg:
      return -x;
    case Op::kAbs:
      return std::abs(x);
    case Op::kSign:
      return sign(x);
    case Op::kFloor:
      return std::floor(x);
    case Op::kCeil:
      return std::ceil(x);
    case Op::kRound:
      return std::nearbyint(x);
    case Op::kTrunc:
      return std::trunc(x);
    case Op::kExp:
      return std::exp(x);
    case Op::kExp2:
      return std::exp2(x);
    case Op::kExpm1:
      return std::expm1(x);
    case Op::kLog:
      return std::log(x);
    case Op::kLog2:
      return std::log2(x);
    case Op::kLog1p:
      return std::log1p(x);
    case Op::kSqrt:
      return std::sqrt(x);
    case Op::kRsqrt:
      return 1 / std::sqrt(x);
    case Op::kSin:
      return std::sin(x);
    case Op::kCos:
      return std::cos(x);
    case Op::kAtan:
      return std::atan(x);
    case Op::kTanh:
      return std::tanh(x);
    case Op::kSigmoid:
      return sigmoid(x);
    case Op::kErf:
      return std::erf(x);
    case Op::kRelu:
      return std::isnan(x) ? x : x > 0 ? x : 0;
    case Op::kGelu:
      return gelu(x);
    case Op::kGeluTanh:
      return gelu_tanh(x);
    case Op::kSilu:
      return x * sigmoid(x);
    case Op::kSoftplus:
      return softplus(x);
    default:
      break;
  }
  assert(false && "not a function of one float");
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace quire::reference
