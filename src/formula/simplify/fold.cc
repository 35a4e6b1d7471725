// Constant folding, one function per operand type. Formula layer.
#include "formula/simplify/fold.h"

#include <bit>
#include <cmath>
#include <limits>

#include "formula/bound/float_grid.h"
#include "formula/bound/integers.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

using std::int64_t;
using std::uint64_t;

Node int_constant(int64_t value) {
  return {.op = Op::kIntConst, .type = ValueType::kInt, .bits = value};
}
Node bool_constant(bool value) {
  return {.op = Op::kBoolConst, .type = ValueType::kBool, .bits = value};
}
Node float_constant(double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  return {.op = Op::kFloatConst, .type = ValueType::kFloat, .bits = std::bit_cast<int64_t>(value)};
}

int64_t wrap(uint64_t value) { return static_cast<int64_t>(value); }
uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

std::optional<int64_t> divide(int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  return b == -1 ? wrap(-u(a)) : floor_quotient(a, b);
}
std::optional<int64_t> remainder(int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    return base == 1 ? 1 : 0;
  }
  uint64_t result = 1;
  for (uint64_t square = u(base); exponent != 0; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return wrap(result);
}

int64_t shift_left(int64_t a, int64_t count) {
  return count < 0 || count > 63 ? 0 : wrap(u(a) << count);
}
int64_t shift_right(int64_t a, int64_t count) {
  return a >> (count < 0 || count > 63 ? 63 : count);
}

std::optional<int64_t> fold_int(Op op, int64_t a, int64_t b, int64_t c) {
  switch (op) {
    case Op::kNeg:
      return wrap(-u(a));
    case Op::kAbs:
      return a < 0 ? wrap(-u(a)) : a;
    case Op::kSign:
      return (a > 0) - (a < 0);
    case Op::kBitNot:
      return ~a;
    case Op::kAdd:
      return wrap(u(a) + u(b));
    case Op::kSub:
      return wrap(u(a) - u(b));
    case Op::kMul:
      return wrap(u(a) * u(b));
    case Op::kFloorDiv:
      return divide(a, b);
    case Op::kMod:
      return remainder(a, b);
    case Op::kPow:
      return power(a, b);
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
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
    case Op::kClamp:
      return std::min(std::max(a, b), c);
    default:
      return std::nullopt;
  }
}

template <class T>
std::optional<T> minimum(T a, T b) {
  if (a == 0 && b == 0 && std::signbit(a) != std::signbit(b)) return std::nullopt;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  return a < b ? a : b;
}
template <class T>
std::optional<T> maximum(T a, T b) {
  const std::optional<T> negated = minimum(-a, -b);
  return negated ? std::optional<T>(-*negated) : std::nullopt;
}

template <class T>
std::optional<T> fold_float(Op op, T a, T b, T c) {
  switch (op) {
    case Op::kNeg:
      return -a;
    case Op::kAbs:
      return std::fabs(a);
    case Op::kSign:
      return std::isnan(a) ? a : static_cast<T>((a > 0) - (a < 0));
    case Op::kFloor:
      return std::floor(a);
    case Op::kCeil:
      return std::ceil(a);
    case Op::kRound:
      return std::nearbyint(a);
    case Op::kTrunc:
      return std::trunc(a);
    case Op::kSqrt:
      return std::sqrt(a);
    case Op::kRelu:
      return maximum(a, T{0});
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kMin:
      return minimum(a, b);
    case Op::kMax:
      return maximum(a, b);
    case Op::kClamp: {
      const std::optional<T> raised = maximum(a, b);
      return raised ? minimum(*raised, c) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

template <class T>
bool compare(Op op, T a, T b) {
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
    default:
      return a != b;
  }
}

std::optional<bool> fold_logic(Op op, bool a, bool b) {
  switch (op) {
    case Op::kNot:
      return !a;
    case Op::kAnd:
      return a && b;
    case Op::kOr:
      return a || b;
    case Op::kXor:
      return a != b;
    default:
      return std::nullopt;
  }
}

int64_t truncated(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) return 0;
  if (value >= kLimit) return kMaxInt;
  return value < -kLimit ? kMinInt : static_cast<int64_t>(value);
}

Node cast(ValueType type, const Node& from, Precision precision) {
  if (from.type == ValueType::kFloat) {
    const double value = constant_value(from, precision);
    return type == ValueType::kInt ? int_constant(truncated(value)) : bool_constant(value != 0);
  }
  if (type == ValueType::kInt) return int_constant(from.bits);
  if (type == ValueType::kBool) return bool_constant(from.bits != 0);
  // One rounding, directly to the precision.
  return float_constant(round_to(from.bits, precision));
}

std::optional<Node> fold_floats(Op op, const double (&x)[3], Precision precision) {
  if (precision == Precision::kF64) {
    const auto result = fold_float<double>(op, x[0], x[1], x[2]);
    return result ? std::optional(float_constant(*result)) : std::nullopt;
  }
  const auto result = fold_float<float>(op, static_cast<float>(x[0]), static_cast<float>(x[1]),
                                        static_cast<float>(x[2]));
  return result ? std::optional(float_constant(static_cast<double>(*result))) : std::nullopt;
}

}  // namespace

double constant_value(const Node& constant, Precision precision) {
  return round_to(constant.float_value(), precision);
}

std::optional<Node> fold(Op op, ValueType type, std::span<const Node> args, Precision precision) {
  if (args.empty() || args.size() > 3) return std::nullopt;
  if (is_cast(op)) return cast(type, args[0], precision);
  if (op == Op::kWhere || is_read(op)) return std::nullopt;
  if (args[0].type == ValueType::kFloat) {
    double x[3] = {};
    for (std::size_t i = 0; i < args.size(); ++i) x[i] = constant_value(args[i], precision);
    if (is_compare(op)) return bool_constant(compare(op, x[0], x[1]));
    return fold_floats(op, x, precision);
  }
  int64_t x[3] = {};
  for (std::size_t i = 0; i < args.size(); ++i) x[i] = args[i].bits;
  if (is_compare(op)) return bool_constant(compare(op, x[0], x[1]));
  if (args[0].type == ValueType::kBool) {
    const auto result = fold_logic(op, x[0] != 0, x[1] != 0);
    return result ? std::optional(bool_constant(*result)) : std::nullopt;
  }
  const auto result = fold_int(op, x[0], x[1], x[2]);
  return result ? std::optional(int_constant(*result)) : std::nullopt;
}

}  // namespace quire::formula
