// Rules for where(condition, a, b) of any type, and for operations on its result. Formula layer.
#include <array>

#include "formula/simplify/fold.h"
#include "formula/simplify/simplify_rules.h"

namespace quire::formula {
namespace {

// A choice between bools as logic, if one operation suffices.
NodeId choose_bool(Rewriter& r, NodeId condition, NodeId a, NodeId b) {
  const auto on = r.bool_value(a), off = r.bool_value(b);
  if (on && off) return *on ? condition : r.make(Op::kNot, ValueType::kBool, condition);
  if (on == true || a == condition) return r.make(Op::kOr, ValueType::kBool, condition, b);
  if (off == false || b == condition) return r.make(Op::kAnd, ValueType::kBool, condition, a);
  return kNoNode;
}

bool is_constant_choice(const Rewriter& r, NodeId id) {
  return r.is(id, Op::kWhere) && is_constant(r.graph()[r.arg(id, 1)].op) &&
         is_constant(r.graph()[r.arg(id, 2)].op);
}

}  // namespace

NodeId simplify_operation_on_choice(Rewriter& r, const Term& term) {
  NodeId choice = kNoNode;
  for (std::size_t i = 0; i < term.arg_count; ++i) {
    if (is_constant(r.graph()[term.args[i]].op)) continue;
    if (choice != kNoNode || !is_constant_choice(r, term.args[i])) return kNoNode;
    choice = term.args[i];
  }
  if (choice == kNoNode) return kNoNode;
  std::array<NodeId, 2> branches = {};
  for (const std::size_t branch : {0, 1}) {
    std::array<Node, 3> args;
    for (std::size_t i = 0; i < term.arg_count; ++i)
      args[i] = r.graph()[term.args[i] == choice ? r.arg(choice, 1 + branch) : term.args[i]];
    const auto value = fold(term.op, term.type, {args.data(), term.arg_count}, r.precision());
    if (!value) return kNoNode;
    branches[branch] = r.make_constant(*value);
  }
  return r.make(Op::kWhere, term.type, r.arg(choice, 0), branches[0], branches[1]);
}

NodeId simplify_choice(Rewriter& r, const Term& term) {
  const auto [condition, a, b] = term.args;
  if (const auto value = r.bool_value(condition)) return *value ? a : b;
  if (a == b) return a;
  if (r.is(condition, Op::kNot)) return r.make(Op::kWhere, term.type, r.arg(condition, 0), b, a);
  // The same condition again inside a branch is already decided.
  if (r.is(a, Op::kWhere) && r.arg(a, 0) == condition)
    return r.make(Op::kWhere, term.type, condition, r.arg(a, 1), b);
  if (r.is(b, Op::kWhere) && r.arg(b, 0) == condition)
    return r.make(Op::kWhere, term.type, condition, a, r.arg(b, 2));
  return term.type == ValueType::kBool ? choose_bool(r, condition, a, b) : kNoNode;
}

}  // namespace quire::formula
