// Rules for where(condition, a, b), of any type. Layer: formula.
#include "formula/simplify_rules.h"

namespace quire::formula {
namespace {

// A choice between bools is logic, where one operation does.
NodeId choose_bool(Rewriter& r, NodeId condition, NodeId a, NodeId b) {
  const auto on = r.bool_value(a), off = r.bool_value(b);
  if (on && off) return *on ? condition : r.make(Op::kNot, ValueType::kBool, condition);
  if (on == true || a == condition) return r.make(Op::kOr, ValueType::kBool, condition, b);
  if (off == false || b == condition) return r.make(Op::kAnd, ValueType::kBool, condition, a);
  return kNoNode;
}

}  // namespace

NodeId simplify_choice(Rewriter& r, const Term& term) {
  const auto [condition, a, b] = term.args;
  if (const auto value = r.bool_value(condition)) return *value ? a : b;
  if (a == b) return a;
  if (r.is(condition, Op::kNot)) return r.make(Op::kWhere, term.type, r.arg(condition, 0), b, a);
  // The same question again inside a branch is answered already.
  if (r.is(a, Op::kWhere) && r.arg(a, 0) == condition)
    return r.make(Op::kWhere, term.type, condition, r.arg(a, 1), b);
  if (r.is(b, Op::kWhere) && r.arg(b, 0) == condition)
    return r.make(Op::kWhere, term.type, condition, a, r.arg(b, 2));
  return term.type == ValueType::kBool ? choose_bool(r, condition, a, b) : kNoNode;
}

}  // namespace quire::formula
