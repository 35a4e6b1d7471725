// Rules for integers. They hold modulo 2^64, so no ranges are needed. Constants move outwards: x +
// 1 - y + 2 becomes x + 3 - y. Formula layer.
#include "formula/bound/integers.h"
#include "formula/simplify/simplify_rules.h"
#include "kernels/tile/wrapping.h"

namespace quire::formula {
namespace {

using std::int64_t;

constexpr ValueType kInt = ValueType::kInt;

int64_t negated(int64_t a) { return static_cast<int64_t>(-static_cast<std::uint64_t>(a)); }

// x + c, written x - 3 rather than x + -3.
NodeId offset(Rewriter& r, NodeId x, int64_t c) {
  if (c == 0) return x;
  if (c > 0 || c == kMinInt) return r.make(Op::kAdd, kInt, x, r.make_int(c));
  return r.make(Op::kSub, kInt, x, r.make_int(negated(c)));
}

// c - x.
NodeId offset_negative(Rewriter& r, NodeId x, int64_t c) {
  if (c == 0) return r.make(Op::kNeg, kInt, x);
  return r.make(Op::kSub, kInt, r.make_int(c), x);
}

// A value seen as x + c or c - x.
struct Offset {
  NodeId x;
  int64_t c;
  bool negative;
};
std::optional<Offset> as_offset(const Rewriter& r, NodeId id) {
  if (r.is(id, Op::kNeg)) return Offset{r.arg(id, 0), 0, true};
  if (!r.is(id, Op::kAdd) && !r.is(id, Op::kSub)) return std::nullopt;
  const NodeId a = r.arg(id, 0), b = r.arg(id, 1);
  const bool sub = r.is(id, Op::kSub);
  if (const auto c = r.int_value(b)) return Offset{a, sub ? negated(*c) : *c, false};
  if (const auto c = r.int_value(a)) return Offset{b, *c, sub};
  return std::nullopt;
}

// x + c, where x may already contain a constant. `as_written`: the term is x + c or x - c in the
// form that `offset` gives.
NodeId add_constant(Rewriter& r, NodeId x, int64_t c, bool as_written) {
  if (c == 0) return x;
  if (const auto inner = as_offset(r, x)) {
    const int64_t sum = kernels::wrapping_add(inner->c, c);
    return inner->negative ? offset_negative(r, inner->x, sum) : offset(r, inner->x, sum);
  }
  return as_written ? kNoNode : offset(r, x, c);
}

bool has_written_sign(Op op, int64_t c) { return op == Op::kAdd ? c > 0 || c == kMinInt : c > 0; }

NodeId simplify_int_add(Rewriter& r, NodeId a, NodeId b) {
  if (const auto c = r.int_value(b)) return add_constant(r, a, *c, has_written_sign(Op::kAdd, *c));
  if (const auto c = r.int_value(a)) return add_constant(r, b, *c, has_written_sign(Op::kAdd, *c));
  if (r.is(b, Op::kNeg)) return r.make(Op::kSub, kInt, a, r.arg(b, 0));
  if (r.is(a, Op::kNeg)) return r.make(Op::kSub, kInt, b, r.arg(a, 0));
  if (r.is(b, Op::kSub) && r.arg(b, 1) == a) return r.arg(b, 0);  // a + (x - a)
  if (r.is(a, Op::kSub) && r.arg(a, 1) == b) return r.arg(a, 0);
  return kNoNode;
}

NodeId simplify_int_sub(Rewriter& r, NodeId a, NodeId b) {
  if (a == b) return r.make_int(0);
  if (const auto c = r.int_value(b))
    return add_constant(r, a, negated(*c), has_written_sign(Op::kSub, *c));
  if (const auto c = r.int_value(a)) {
    if (*c == 0) return r.make(Op::kNeg, kInt, b);
    const auto inner = as_offset(r, b);
    if (!inner) return kNoNode;
    const int64_t rest = kernels::wrapping_add(*c, negated(inner->c));
    return inner->negative ? offset(r, inner->x, rest) : offset_negative(r, inner->x, rest);
  }
  if (r.is(b, Op::kNeg)) return r.make(Op::kAdd, kInt, a, r.arg(b, 0));
  if (r.is(b, Op::kSub) && r.arg(b, 0) == a) return r.arg(b, 1);  // a - (a - x)
  if (r.is(a, Op::kAdd) && r.arg(a, 0) == b) return r.arg(a, 1);  // (b + x) - b
  if (r.is(a, Op::kAdd) && r.arg(a, 1) == b) return r.arg(a, 0);
  return kNoNode;
}

NodeId simplify_int_neg(Rewriter& r, NodeId a) {
  if (r.is(a, Op::kSub)) return r.make(Op::kSub, kInt, r.arg(a, 1), r.arg(a, 0));
  if (const auto inner = as_offset(r, a)) {
    const int64_t c = negated(inner->c);
    return inner->negative ? offset(r, inner->x, c) : offset_negative(r, inner->x, c);
  }
  if (r.is(a, Op::kMul)) {
    if (const auto c = r.int_value(r.arg(a, 1)))
      return r.make(Op::kMul, kInt, r.arg(a, 0), r.make_int(negated(*c)));
    if (const auto c = r.int_value(r.arg(a, 0)))
      return r.make(Op::kMul, kInt, r.arg(a, 1), r.make_int(negated(*c)));
  }
  return kNoNode;
}

NodeId multiply_constant(Rewriter& r, NodeId x, int64_t c) {
  if (c == 0) return r.make_int(0);
  if (c == 1) return x;
  if (c == -1) return r.make(Op::kNeg, kInt, x);
  if (r.is(x, Op::kNeg)) return r.make(Op::kMul, kInt, r.arg(x, 0), r.make_int(negated(c)));
  if (!r.is(x, Op::kMul)) return kNoNode;
  for (const std::size_t i : {0, 1}) {
    if (const auto inner = r.int_value(r.arg(x, i)))
      return r.make(Op::kMul, kInt, r.arg(x, 1 - i), r.make_int(kernels::wrapping_mul(*inner, c)));
  }
  return kNoNode;
}

NodeId simplify_int_mul(Rewriter& r, NodeId a, NodeId b) {
  if (const auto c = r.int_value(b)) return multiply_constant(r, a, *c);
  if (const auto c = r.int_value(a)) return multiply_constant(r, b, *c);
  if (r.is(a, Op::kNeg) && r.is(b, Op::kNeg))
    return r.make(Op::kMul, kInt, r.arg(a, 0), r.arg(b, 0));
  return kNoNode;
}

NodeId simplify_power(Rewriter& r, NodeId a, NodeId b) {
  if (r.int_value(a) == 1) return a;
  const auto exponent = r.int_value(b);
  if (exponent == 0) return r.make_int(1);
  if (exponent == 1) return a;
  return exponent == 2 ? r.make(Op::kMul, kInt, a, a) : kNoNode;
}

NodeId simplify_divide(Rewriter& r, Op op, NodeId a, NodeId b) {
  const auto divisor = r.int_value(b);
  if (op == Op::kFloorDiv) return divisor == 1 ? a : kNoNode;
  return divisor == 1 || divisor == -1 ? r.make_int(0) : kNoNode;
}

NodeId simplify_shift(Rewriter& r, Op op, NodeId a, NodeId b) {
  if (r.int_value(a) == 0) return a;
  const auto count = r.int_value(b);
  if (!count) return kNoNode;
  if (*count == 0) return a;
  return op == Op::kShl && (*count < 0 || *count > 63) ? r.make_int(0) : kNoNode;
}

// minimum, maximum, &, | and ^: of equal values, and with a constant on either side.
NodeId simplify_lattice(Rewriter& r, Op op, NodeId a, NodeId b) {
  if (a == b) return op == Op::kBitXor ? r.make_int(0) : a;
  const bool left = r.int_value(a).has_value();
  const auto c = r.int_value(left ? a : b);
  if (!c) return kNoNode;
  const NodeId x = left ? b : a, constant = left ? a : b;
  int64_t neutral = 0, absorbing = 0;
  switch (op) {
    case Op::kMin:
      neutral = kMaxInt, absorbing = kMinInt;
      break;
    case Op::kMax:
      neutral = kMinInt, absorbing = kMaxInt;
      break;
    case Op::kBitAnd:
      neutral = -1, absorbing = 0;
      break;
    case Op::kBitOr:
      neutral = 0, absorbing = -1;
      break;
    default:
      if (c == -1) return r.make(Op::kBitNot, kInt, x);
      return c == 0 ? x : kNoNode;
  }
  if (c == neutral) return x;
  return c == absorbing ? constant : kNoNode;
}

NodeId simplify_int_clamp(Rewriter& r, NodeId x, NodeId low, NodeId high) {
  if (low == high) return high;
  if (r.int_value(low) == kMinInt) return r.make(Op::kMin, kInt, x, high);
  if (r.int_value(high) == kMaxInt) return r.make(Op::kMax, kInt, x, low);
  return kNoNode;
}

NodeId simplify_to_int(Rewriter& r, NodeId a) {
  if (r.is(a, Op::kTrunc)) return r.make(Op::kToInt, kInt, r.arg(a, 0));
  if (r.is(a, Op::kToFloat) && r.type(r.arg(a, 0)) == ValueType::kBool)
    return r.make(Op::kToInt, kInt, r.arg(a, 0));
  return kNoNode;
}

}  // namespace

NodeId simplify_int(Rewriter& r, const Term& term) {
  const NodeId a = term.args[0], b = term.args[1];
  switch (term.op) {
    case Op::kToInt:
      return simplify_to_int(r, a);
    case Op::kNeg:
      return simplify_int_neg(r, a);
    case Op::kAbs:
      if (r.is(a, Op::kNeg)) return r.make(Op::kAbs, kInt, r.arg(a, 0));
      return r.is(a, Op::kAbs) ? a : kNoNode;
    case Op::kSign:
      return r.is(a, Op::kSign) ? a : kNoNode;
    case Op::kBitNot:
      return r.is(a, Op::kBitNot) ? r.arg(a, 0) : kNoNode;
    case Op::kAdd:
      return simplify_int_add(r, a, b);
    case Op::kSub:
      return simplify_int_sub(r, a, b);
    case Op::kMul:
      return simplify_int_mul(r, a, b);
    case Op::kFloorDiv:
    case Op::kMod:
      return simplify_divide(r, term.op, a, b);
    case Op::kPow:
      return simplify_power(r, a, b);
    case Op::kShl:
    case Op::kShr:
      return simplify_shift(r, term.op, a, b);
    case Op::kMin:
    case Op::kMax:
    case Op::kBitAnd:
    case Op::kBitOr:
    case Op::kBitXor:
      return simplify_lattice(r, term.op, a, b);
    case Op::kClamp:
      return simplify_int_clamp(r, a, b, term.args[2]);
    default:
      return kNoNode;
  }
}

}  // namespace quire::formula
