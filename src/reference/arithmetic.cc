// int64 and f64 arithmetic, one small function per rule. Reference layer.
#include "reference/arithmetic.h"

#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>

namespace quire::reference {
namespace {

using Int = std::int64_t;
using Unsigned = std::uint64_t;

constexpr Int kMinInt = std::numeric_limits<Int>::min();
constexpr Int kMaxInt = std::numeric_limits<Int>::max();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Unsigned arithmetic wraps; signed overflow would be undefined.
Int wrapped(Unsigned x) { return static_cast<Int>(x); }

Int floor_div(Int a, Int b) {
  if (b == 0) return 0;
  if (b == -1) return wrapped(-static_cast<Unsigned>(a));  // INT64_MIN / -1 traps
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Int modulo(Int a, Int b) {
  if (b == 0 || b == -1) return 0;
  const Int remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Int power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    return 0;
  }
  Unsigned result = 1, square = static_cast<Unsigned>(base);
  for (Int n = exponent; n != 0; n >>= 1) {
    if (n & 1) result *= square;
    square *= square;
  }
  return wrapped(result);
}

Int shift_left(Int a, Int count) {
  return count < 0 || count > 63 ? 0 : wrapped(static_cast<Unsigned>(a) << count);
}

Int shift_right(Int a, Int count) {
  if (count < 0 || count > 63) return a < 0 ? -1 : 0;
  return a >> count;
}

// Python's `a % b`: fmod, which is exact, moved to the divisor's sign. By zero: NaN.
double modulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// Python's `a // b`: the remainder is taken off first, so that the quotient is an integer up to
// rounding, and is then snapped to it. By zero, where Python throws: a / b, as torch.
double floor_div(double a, double b) {
  if (b == 0) return a / b;
  const double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

double minimum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kNaN;
  return a < b ? a : b;
}

double maximum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kNaN;
  return a > b ? a : b;
}

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

template <class Number>
bool compare_numbers(Op op, Number a, Number b) {
  switch (op) {
    case Op::kLt:
      return a < b;
    case Op::kLe:
      return a <= b;
    case Op::kGt:
      return a > b;
    case Op::kGe:
      return a >= b;
    case Op::kEq:
      return a == b;
    case Op::kNe:
      return a != b;
    default:
      break;
  }
  assert(false && "not a comparison");
  return false;
}

}  // namespace

Int int_unary(Op op, Int a) {
  switch (op) {
    case Op::kNeg:
      return wrapped(-static_cast<Unsigned>(a));
    case Op::kAbs:
      return a < 0 ? wrapped(-static_cast<Unsigned>(a)) : a;
    case Op::kSign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case Op::kBitNot:
      return ~a;
    default:
      break;
  }
  assert(false && "not an operation on one integer");
  return 0;
}

Int int_binary(Op op, Int a, Int b) {
  switch (op) {
    case Op::kAdd:
      return wrapped(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    case Op::kSub:
      return wrapped(static_cast<Unsigned>(a) - static_cast<Unsigned>(b));
    case Op::kMul:
      return wrapped(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
    case Op::kFloorDiv:
      return floor_div(a, b);
    case Op::kMod:
      return modulo(a, b);
    case Op::kPow:
      return power(a, b);
    case Op::kMin:
      return a < b ? a : b;
    case Op::kMax:
      return a > b ? a : b;
    case Op::kShl:
      return shift_left(a, b);
    case Op::kShr:
      return shift_right(a, b);
    case Op::kBitAnd:
      return a & b;
    case Op::kBitOr:
      return a | b;
    case Op::kBitXor:
      return a ^ b;
    default:
      break;
  }
  assert(false && "not an operation on two integers");
  return 0;
}

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
    case Op::kTanh:
      return std::tanh(x);
    case Op::kSigmoid:
      return sigmoid(x);
    case Op::kErf:
      return std::erf(x);
    case Op::kRelu:
      return maximum(x, 0);
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
  return kNaN;
}

double float_binary(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kFloorDiv:
      return floor_div(a, b);
    case Op::kMod:
      return modulo(a, b);
    case Op::kPow:
      return std::pow(a, b);
    case Op::kMin:
      return minimum(a, b);
    case Op::kMax:
      return maximum(a, b);
    default:
      break;
  }
  assert(false && "not an operation on two floats");
  return kNaN;
}

bool compare(Op op, Int a, Int b) { return compare_numbers(op, a, b); }
bool compare(Op op, double a, double b) { return compare_numbers(op, a, b); }

Int float_to_int(double x) {
  if (std::isnan(x)) return 0;
  if (x >= 0x1p63) return kMaxInt;
  if (x < -0x1p63) return kMinInt;
  return static_cast<Int>(x);
}

}  // namespace quire::reference
