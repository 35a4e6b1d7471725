// The recording half of expr.h: operations on expressions add nodes to a shared graph. Formula
// layer.
#include <array>
#include <bit>
#include <cmath>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/type_rules.h"
#include "quire/error.h"
#include "quire/expr.h"
#include "quire/mod.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using formula::Graph;
using formula::NodeId;

ExprBase ExprBase::literal(double value) {
  return {Op::kFloatConst, std::bit_cast<std::int64_t>(value)};
}

namespace detail {
namespace {

using GraphPtr = std::shared_ptr<Graph>;

// An operation is recorded in the largest graph among its operands', because what is in another
// graph must be copied. Small graphs are common: an element at a constant index has a graph of its
// own until it is combined with an argument of the mod.
const GraphPtr& larger(const GraphPtr& a, const GraphPtr& b) {
  return !b || (a && a->size() >= b->size()) ? a : b;
}

template <class... E>
GraphPtr graph_of(const E&... operands) {
  GraphPtr found;
  ((found = larger(found, operands.graph())), ...);
  return found ? found : std::make_shared<Graph>();
}

// Null if none of them has one.
GraphPtr graph_of(const std::vector<ExprBase>& operands) {
  GraphPtr found;
  for (const ExprBase& operand : operands) found = larger(found, operand.graph());
  return found;
}

// The operand as a node of `graph`, copied if it is in another graph.
NodeId node_in(const GraphPtr& graph, const ExprBase& operand) {
  if (operand.graph() == graph) return operand.node();
  if (operand.graph()) {
    std::vector<NodeId> map;
    return copy_reachable(*operand.graph(), operand.node(), *graph, map);
  }
  switch (operand.literal_op()) {
    case Op::kFloatConst:
      return make_float(*graph, std::bit_cast<double>(operand.literal_bits()));
    case Op::kBoolConst:
      return make_bool(*graph, operand.literal_bits() != 0);
    default:
      return make_int(*graph, operand.literal_bits());
  }
}

std::vector<NodeId> nodes_in(const GraphPtr& graph, const std::vector<ExprBase>& operands) {
  std::vector<NodeId> ids;
  for (const ExprBase& operand : operands) ids.push_back(node_in(graph, operand));
  return ids;
}

}  // namespace

ExprBase unary(Op op, const ExprBase& a) {
  const FloatEnv float_env;
  const GraphPtr graph = graph_of(a);
  return {graph, make_unary(*graph, op, node_in(graph, a))};
}

ExprBase binary(Op op, const ExprBase& a, const ExprBase& b) {
  const FloatEnv float_env;
  const GraphPtr graph = graph_of(a, b);
  const NodeId x = node_in(graph, a), y = node_in(graph, b);
  return {graph, make_binary(*graph, op, x, y)};
}

ExprBase ternary(Op op, const ExprBase& a, const ExprBase& b, const ExprBase& c) {
  const FloatEnv float_env;
  const GraphPtr graph = graph_of(a, b, c);
  const NodeId x = node_in(graph, a), y = node_in(graph, b), z = node_in(graph, c);
  return {graph, op == Op::kWhere ? make_where(*graph, x, y, z) : make_clamp(*graph, x, y, z)};
}

ExprBase checked_divide(const ExprBase& a, const ExprBase& b) {
  const FloatEnv float_env;
  const GraphPtr graph = graph_of(a, b);
  const NodeId x = node_in(graph, a), y = node_in(graph, b);
  if ((*graph)[x].type != ValueType::kFloat && (*graph)[y].type != ValueType::kFloat) {
    fail(ErrorKind::type, "formula", "'/' on two integers is ambiguous; use floor_div or true_div");
  }
  return {graph, make_binary(*graph, Op::kDiv, x, y)};
}

ExprBase load(const Buffer& buffer, const std::vector<ExprBase>& indices) {
  const FloatEnv float_env;
  GraphPtr graph = graph_of(indices);
  if (!graph) graph = std::make_shared<Graph>();
  return {graph, make_load(*graph, buffer, nodes_in(graph, indices))};
}

ExprBase sum(const Buffer& buffer, const std::vector<ExprBase>& indices) {
  const FloatEnv float_env;
  GraphPtr graph = graph_of(indices);
  if (!graph) graph = std::make_shared<Graph>();
  return {graph, make_sum(*graph, buffer, nodes_in(graph, indices))};
}

ExprBase dot(const Buffer& a, const std::vector<ExprBase>& a_indices, const Buffer& b,
             const std::vector<ExprBase>& b_indices) {
  const FloatEnv float_env;
  GraphPtr graph = larger(graph_of(a_indices), graph_of(b_indices));
  if (!graph) graph = std::make_shared<Graph>();
  return {graph, make_dot(*graph, a, nodes_in(graph, a_indices), b, nodes_in(graph, b_indices))};
}

ExprBase apply(const Formula& formula, const std::array<ExprBase, 5>& arguments) {
  const FloatEnv float_env;
  const auto& [score, b, h, q_idx, kv_idx] = arguments;
  const GraphPtr graph = graph_of(score, b, h, q_idx, kv_idx);
  const Graph& from = formula.graph();
  std::vector<NodeId> map, args;
  for (NodeId id = 0; id <= formula.root(); ++id) {
    const formula::Node& node = from[id];
    args.clear();
    for (const NodeId arg : from.args(id)) args.push_back(map[arg]);
    if (formula::is_argument(node.op)) {
      const NodeId value = node_in(graph, arguments[static_cast<std::size_t>(node.op)]);
      if (node.type == ValueType::kInt && (*graph)[value].type == ValueType::kFloat)
        fail(ErrorKind::type, "formula", "b, h, q_idx and kv_idx of a mod must be integers");
      map.push_back(make_cast(*graph, value, node.type));
    } else if (formula::is_cast(node.op)) {
      map.push_back(make_cast(*graph, args[0], node.type));  // its argument may be a constant now
    } else {
      map.push_back(make_like(*graph, from, node, args));
    }
  }
  return {graph, map.back()};
}

ModArguments mod_arguments() {
  const FloatEnv float_env;
  const auto graph = std::make_shared<Graph>();
  const auto leaf = [&](Op op) { return ExprBase(graph, make_leaf(*graph, op)); };
  const ExprBase score = leaf(Op::kScore), b = leaf(Op::kBatch), h = leaf(Op::kHead),
                 q_idx = leaf(Op::kQIdx), kv_idx = leaf(Op::kKvIdx);
  return {FloatExpr(score), IntExpr(b), IntExpr(h), IntExpr(q_idx), IntExpr(kv_idx)};
}

}  // namespace detail
}  // namespace quire
