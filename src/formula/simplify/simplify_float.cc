// Rules for floats: only identities that hold for every value, including the sign of zero. Negation
// commutes with rounding; x * 1, x - 0.0 and x + -0.0 are x; x + 0.0 is not (-0.0), nor are x * 0
// and x - x zero (inf, NaN). Formula layer.
#include <cmath>
#include <limits>

#include "formula/simplify/simplify_rules.h"

namespace quire::formula {
namespace {

constexpr ValueType kFloat = ValueType::kFloat;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_zero(const std::optional<double>& value, bool negative) {
  return value && *value == 0 && std::signbit(*value) == negative;
}

NodeId simplify_float_add(Rewriter& r, NodeId a, NodeId b) {
  if (is_zero(r.float_value(b), true)) return a;
  if (is_zero(r.float_value(a), true)) return b;
  if (r.is(b, Op::kNeg)) return r.make(Op::kSub, kFloat, a, r.arg(b, 0));
  if (r.is(a, Op::kNeg)) return r.make(Op::kSub, kFloat, b, r.arg(a, 0));
  return kNoNode;
}

NodeId simplify_float_sub(Rewriter& r, NodeId a, NodeId b) {
  if (is_zero(r.float_value(b), false)) return a;
  if (is_zero(r.float_value(a), true)) return r.make(Op::kNeg, kFloat, b);
  if (r.is(b, Op::kNeg)) return r.make(Op::kAdd, kFloat, a, r.arg(b, 0));
  return kNoNode;
}

// -c as written: rounding to the precision is symmetric.
NodeId negated(Rewriter& r, NodeId constant) {
  return r.make_float(-r.graph()[constant].float_value());
}

// x * c or x / c.
NodeId scale_by_constant(Rewriter& r, Op op, NodeId x, NodeId constant) {
  const auto c = r.float_value(constant);
  if (c == 1) return x;
  if (c == -1) return r.make(Op::kNeg, kFloat, x);
  if (r.is(x, Op::kNeg)) return r.make(op, kFloat, r.arg(x, 0), negated(r, constant));
  return kNoNode;
}

NodeId simplify_float_mul(Rewriter& r, NodeId a, NodeId b) {
  if (r.is(b, Op::kFloatConst)) return scale_by_constant(r, Op::kMul, a, b);
  if (r.is(a, Op::kFloatConst)) return scale_by_constant(r, Op::kMul, b, a);
  if (r.is(a, Op::kNeg) && r.is(b, Op::kNeg))
    return r.make(Op::kMul, kFloat, r.arg(a, 0), r.arg(b, 0));
  return kNoNode;
}

// 1 / c, if multiplying by it equals dividing by c: for powers of two whose reciprocal is normal,
// so that the treatment of subnormals does not matter.
std::optional<double> exact_reciprocal(double c, Precision precision) {
  int exponent = 0;
  if (!std::isfinite(c) || std::fabs(std::frexp(c, &exponent)) != 0.5) return std::nullopt;
  // |c| is 2^(exponent - 1).
  const int smallest = precision == Precision::kF32 ? std::numeric_limits<float>::min_exponent
                                                    : std::numeric_limits<double>::min_exponent;
  const int largest = precision == Precision::kF32 ? std::numeric_limits<float>::max_exponent
                                                   : std::numeric_limits<double>::max_exponent;
  const int reciprocal = 2 - exponent;  // in frexp's convention: its fraction is 0.5 too
  if (reciprocal < smallest || reciprocal > largest) return std::nullopt;
  return 1 / c;
}

NodeId simplify_float_div(Rewriter& r, NodeId a, NodeId b) {
  if (const auto c = r.float_value(b)) {
    const NodeId scaled = scale_by_constant(r, Op::kDiv, a, b);
    if (scaled != kNoNode) return scaled;
    const auto reciprocal = exact_reciprocal(*c, r.precision());
    return reciprocal ? r.make(Op::kMul, kFloat, a, r.make_float(*reciprocal)) : kNoNode;
  }
  if (!r.is(b, Op::kNeg)) return kNoNode;
  if (r.is(a, Op::kNeg)) return r.make(Op::kDiv, kFloat, r.arg(a, 0), r.arg(b, 0));
  if (r.is(a, Op::kFloatConst)) return r.make(Op::kDiv, kFloat, negated(r, a), r.arg(b, 0));
  return kNoNode;
}

// -(x * c) and -(x / c), with the constant on either side.
NodeId simplify_float_neg(Rewriter& r, NodeId a) {
  if (r.is(a, Op::kNeg)) return r.arg(a, 0);
  if (!r.is(a, Op::kMul) && !r.is(a, Op::kDiv)) return kNoNode;
  const Op op = r.graph()[a].op;
  const NodeId x = r.arg(a, 0), y = r.arg(a, 1);
  if (r.is(y, Op::kFloatConst)) return r.make(op, kFloat, x, negated(r, y));
  if (r.is(x, Op::kFloatConst)) return r.make(op, kFloat, negated(r, x), y);
  return kNoNode;
}

bool is_whole(const Rewriter& r, NodeId id) {
  switch (r.graph()[id].op) {
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
    case Op::kSign:
    case Op::kToFloat:
      return true;
    default:
      return false;
  }
}

NodeId simplify_to_float(Rewriter& r, NodeId a) {
  const bool widened = r.is(a, Op::kToInt) && r.type(r.arg(a, 0)) == ValueType::kBool;
  return widened ? r.make(Op::kToFloat, kFloat, r.arg(a, 0)) : kNoNode;
}

// minimum and maximum of equal values, or with the infinity that never wins.
NodeId simplify_extremum(Rewriter& r, NodeId a, NodeId b, double neutral) {
  if (a == b || r.float_value(b) == neutral) return a;
  return r.float_value(a) == neutral ? b : kNoNode;
}

NodeId simplify_float_clamp(Rewriter& r, NodeId x, NodeId low, NodeId high) {
  if (r.float_value(low) == -kInfinity) return r.make(Op::kMin, kFloat, x, high);
  if (r.float_value(high) == kInfinity) return r.make(Op::kMax, kFloat, x, low);
  return kNoNode;
}

}  // namespace

NodeId simplify_float(Rewriter& r, const Term& term) {
  const NodeId a = term.args[0], b = term.args[1];
  switch (term.op) {
    case Op::kToFloat:
      return simplify_to_float(r, a);
    case Op::kNeg:
      return simplify_float_neg(r, a);
    case Op::kAbs:
      if (r.is(a, Op::kNeg)) return r.make(Op::kAbs, kFloat, r.arg(a, 0));
      return r.is(a, Op::kAbs) ? a : kNoNode;
    case Op::kSign:
    case Op::kRelu:
      return r.is(a, term.op) ? a : kNoNode;
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
      return is_whole(r, a) ? a : kNoNode;
    case Op::kAdd:
      return simplify_float_add(r, a, b);
    case Op::kSub:
      return simplify_float_sub(r, a, b);
    case Op::kMul:
      return simplify_float_mul(r, a, b);
    case Op::kDiv:
      return simplify_float_div(r, a, b);
    case Op::kMin:
      return simplify_extremum(r, a, b, kInfinity);
    case Op::kMax:
      return simplify_extremum(r, a, b, -kInfinity);
    case Op::kClamp:
      return simplify_float_clamp(r, a, b, term.args[2]);
    default:
      return kNoNode;
  }
}

}  // namespace quire::formula
