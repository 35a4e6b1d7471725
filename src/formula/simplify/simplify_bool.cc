// Rules for logic, comparisons and casts to bool. Formula layer.
#include <array>

#include "formula/simplify/fold.h"
#include "formula/simplify/simplify_rules.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

constexpr ValueType kBool = ValueType::kBool;

bool compares_ints(const Rewriter& r, NodeId id) {
  return is_compare(r.graph()[id].op) && r.type(r.arg(id, 0)) == ValueType::kInt;
}

// The bool that was widened to the number `id`, or kNoNode.
NodeId widened_bool(const Rewriter& r, NodeId id) {
  if (!r.is(id, Op::kToInt) && !r.is(id, Op::kToFloat)) return kNoNode;
  return r.type(r.arg(id, 0)) == kBool ? r.arg(id, 0) : kNoNode;
}

// Whether exactly one of a and b holds, judging by their structure.
bool are_complements(const Rewriter& r, NodeId a, NodeId b) {
  if (r.is(a, Op::kNot) && r.arg(a, 0) == b) return true;
  if (r.is(b, Op::kNot) && r.arg(b, 0) == a) return true;
  if (!is_compare(r.graph()[a].op) || r.graph()[b].op != complement(r.graph()[a].op)) return false;
  const bool exact = compares_ints(r, a) || r.is(a, Op::kEq) || r.is(a, Op::kNe);
  return exact && r.arg(a, 0) == r.arg(b, 0) && r.arg(a, 1) == r.arg(b, 1);
}

NodeId simplify_not(Rewriter& r, NodeId a) {
  if (r.is(a, Op::kNot)) return r.arg(a, 0);
  const Op op = r.graph()[a].op;
  // NaN makes a < b and a >= b both false.
  const bool exact = compares_ints(r, a) || op == Op::kEq || op == Op::kNe;
  return exact ? r.make(complement(op), kBool, r.arg(a, 0), r.arg(a, 1)) : kNoNode;
}

// a & (a & x) is a & x, a & (a | x) is a, and the same with the operations exchanged.
NodeId absorbed(const Rewriter& r, Op op, NodeId a, NodeId b) {
  if (!r.is(b, Op::kAnd) && !r.is(b, Op::kOr)) return kNoNode;
  if (r.arg(b, 0) != a && r.arg(b, 1) != a) return kNoNode;
  return r.is(b, op) ? b : a;
}

NodeId simplify_and_or(Rewriter& r, Op op, NodeId a, NodeId b) {
  if (a == b) return a;
  const bool neutral = op == Op::kAnd;
  if (const auto value = r.bool_value(a)) return *value == neutral ? b : a;
  if (const auto value = r.bool_value(b)) return *value == neutral ? a : b;
  if (are_complements(r, a, b)) return r.make_bool(!neutral);
  const NodeId left = absorbed(r, op, a, b);
  return left != kNoNode ? left : absorbed(r, op, b, a);
}

NodeId simplify_xor(Rewriter& r, NodeId a, NodeId b) {
  if (a == b) return r.make_bool(false);
  if (const auto value = r.bool_value(a)) return *value ? r.make(Op::kNot, kBool, b) : b;
  if (const auto value = r.bool_value(b)) return *value ? r.make(Op::kNot, kBool, a) : a;
  if (are_complements(r, a, b)) return r.make_bool(true);
  if (r.is(a, Op::kNot) && r.is(b, Op::kNot))
    return r.make(Op::kXor, kBool, r.arg(a, 0), r.arg(b, 0));
  return kNoNode;
}

NodeId simplify_to_bool(Rewriter& r, NodeId a) {
  const NodeId widened = widened_bool(r, a);
  if (widened != kNoNode) return widened;
  switch (r.graph()[a].op) {
    case Op::kToFloat:  // of an int: rounding never gives zero
    case Op::kNeg:
    case Op::kAbs:
    case Op::kSign:
      return r.make(Op::kToBool, kBool, r.arg(a, 0));
    default:
      return kNoNode;
  }
}

// A widened bool compared with a constant: evaluated for 0 and for 1.
NodeId compare_widened(Rewriter& r, Op op, NodeId widened, NodeId constant) {
  const NodeId x = widened_bool(r, widened);
  if (x == kNoNode || !is_constant(r.graph()[constant].op)) return kNoNode;
  std::array<bool, 2> results = {};
  for (const bool value : {false, true}) {
    const Node narrow{.op = Op::kBoolConst, .type = kBool, .bits = value};
    const Node wide = *fold(Op::kToInt, r.type(widened), {&narrow, 1}, r.precision());
    const std::array<Node, 2> sides = {wide, r.graph()[constant]};
    results[value] = fold(op, kBool, sides, r.precision())->bits != 0;
  }
  if (results[0] == results[1]) return r.make_bool(results[0]);
  return results[1] ? x : r.make(Op::kNot, kBool, x);
}

// For two sides known to be equal and not NaN.
bool holds_for_equal(Op op) { return op == Op::kLe || op == Op::kGe || op == Op::kEq; }

NodeId simplify_compare(Rewriter& r, Op op, NodeId a, NodeId b) {
  if (r.type(a) == ValueType::kInt) {
    if (a == b) return r.make_bool(holds_for_equal(op));
    const AffineForm apart = difference(r.form(a), r.form(b));
    if (apart.is_constant()) {
      if (apart.c == 0) return r.make_bool(holds_for_equal(op));
      // Which of the two is larger may change when one of them wraps.
      if (op == Op::kEq || op == Op::kNe) return r.make_bool(op == Op::kNe);
    }
  } else if (a == b && (op == Op::kLt || op == Op::kGt)) {
    return r.make_bool(false);
  }
  const NodeId x = widened_bool(r, a), y = widened_bool(r, b);
  if (x != kNoNode && y != kNoNode && op == Op::kNe) return r.make(Op::kXor, kBool, x, y);
  const NodeId left = compare_widened(r, op, a, b);
  return left != kNoNode ? left : compare_widened(r, mirrored(op), b, a);
}

}  // namespace

Op complement(Op op) {
  switch (op) {
    case Op::kLt:
      return Op::kGe;
    case Op::kLe:
      return Op::kGt;
    case Op::kGt:
      return Op::kLe;
    case Op::kGe:
      return Op::kLt;
    case Op::kEq:
      return Op::kNe;
    default:
      return Op::kEq;
  }
}

Op mirrored(Op op) {
  switch (op) {
    case Op::kLt:
      return Op::kGt;
    case Op::kLe:
      return Op::kGe;
    case Op::kGt:
      return Op::kLt;
    case Op::kGe:
      return Op::kLe;
    default:
      return op;
  }
}

NodeId simplify_bool(Rewriter& r, const Term& term) {
  const NodeId a = term.args[0], b = term.args[1];
  switch (term.op) {
    case Op::kToBool:
      return simplify_to_bool(r, a);
    case Op::kNot:
      return simplify_not(r, a);
    case Op::kAnd:
    case Op::kOr:
      return simplify_and_or(r, term.op, a, b);
    case Op::kXor:
      return simplify_xor(r, a, b);
    default:
      return is_compare(term.op) ? simplify_compare(r, term.op, a, b) : kNoNode;
  }
}

}  // namespace quire::formula
