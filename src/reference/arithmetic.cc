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

// Python's `a % b`: fmod, which is exact, adjusted to the divisor's sign. By zero: NaN.
double modulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// Python's `a // b`: the remainder is subtracted first, so that the quotient is an integer up to
// rounding, and is then rounded to it. By zero, where Python throws: a / b, as in torch.
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
