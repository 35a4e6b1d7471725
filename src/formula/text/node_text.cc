// Decides which casts and parentheses a node is printed with. Formula layer.
#include "formula/text/node_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "formula/build.h"
#include "formula/text/names.h"
#include "formula/text/print.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

// How parsing converts the arguments of an operation that have another type than it works in.
enum class Conversion {
  kNone,    // not at all, or in a way that changes the operation
  kEach,    // every argument
  kCommon,  // every argument, if at least one already has that type
};

Conversion conversion(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.arg_count == 0) return Conversion::kNone;
  const bool works_in_float = graph[graph.arg(id, 0)].type == ValueType::kFloat;
  switch (op_info(node.op).rule) {
    case TypeRule::kNumber:
      if (!works_in_float) return Conversion::kEach;
      return node.arg_count == 1 ? Conversion::kNone : Conversion::kCommon;
    case TypeRule::kPower:
    case TypeRule::kCompare:
      return works_in_float ? Conversion::kCommon : Conversion::kEach;
    case TypeRule::kFloat:
    case TypeRule::kShift:
    case TypeRule::kRead:
      return Conversion::kEach;
    case TypeRule::kBits:  // for two bools they are logic
      return node.arg_count == 1 ? Conversion::kNone : Conversion::kCommon;
    case TypeRule::kChoice:
      return Conversion::kCommon;  // of the branches
    default:
      return Conversion::kNone;
  }
}

// Whether ** with this exponent would be parsed as something other than a power.
bool is_rewritten(const Node& exponent) {
  if (exponent.op != Op::kIntConst && exponent.op != Op::kFloatConst) return false;
  Graph graph;
  const NodeId base = make_leaf(graph, exponent.type == ValueType::kFloat ? Op::kScore : Op::kQIdx);
  const NodeId power = make_binary(graph, Op::kPow, base, make_like(graph, graph, exponent, {}));
  return graph[power].op != Op::kPow || graph[power].type != exponent.type;
}

}  // namespace

std::string constant_text(const Node& node) {
  if (node.op == Op::kBoolConst) return node.bits != 0 ? "True" : "False";
  if (node.op == Op::kIntConst) return fmt::format("{}", node.bits);
  const double value = node.float_value();
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // n: inf
  return text;
}

NodeText::NodeText(const Graph& graph) : graph_(graph), bound_(graph.size(), -1) {
  for (auto& [name, buffer] : printed_names(graph)) buffer_names_.push_back(std::move(name));
}

void NodeText::bind(NodeId id, std::string name) {
  bound_[id] = static_cast<std::int32_t>(names_.size());
  names_.push_back(std::move(name));
}

const std::string& NodeText::name(NodeId id) const { return names_[bound_[id]]; }

const std::string& NodeText::buffer_name(std::int32_t buffer) const {
  return buffer_names_[buffer];
}

bool NodeText::is_buffer_name(const std::string& name) const {
  return std::find(buffer_names_.begin(), buffer_names_.end(), name) != buffer_names_.end();
}

// A conversion that parsing inserts by itself: to bool from anything, to float from anything, to
// int only from bool.
bool NodeText::is_cast(NodeId id, ValueType to) const {
  const Node& node = graph_[id];
  if (!formula::is_cast(node.op) || node.type != to || is_bound(id)) return false;
  return to != ValueType::kInt || graph_[graph_.arg(id, 0)].type == ValueType::kBool;
}

// The arguments as written: for a hidden cast, its argument.
std::vector<NodeId> NodeText::shown_args(NodeId id) const {
  const auto args = graph_.args(id);
  std::vector<NodeId> shown(args.begin(), args.end());
  const auto hide = [&](NodeId& arg, ValueType to) {
    if (is_cast(arg, to)) arg = graph_.arg(arg, 0);
  };
  std::span<NodeId> operands = shown;
  if (graph_[id].op == Op::kWhere) {
    hide(operands[0], ValueType::kBool);
    operands = operands.subspan(1);
  }
  const Conversion how = conversion(graph_, id);
  if (how == Conversion::kNone || operands.empty()) return shown;
  const ValueType type = graph_[operands[0]].type;  // the same for all of them
  if (type == ValueType::kBool) return shown;
  if (how == Conversion::kCommon &&
      std::all_of(operands.begin(), operands.end(), [&](NodeId arg) { return is_cast(arg, type); }))
    operands = operands.subspan(1);  // the first one stays and determines the type
  for (NodeId& operand : operands) hide(operand, type);
  return shown;
}

bool NodeText::is_plain_power(NodeId id) const {
  return graph_[id].op == Op::kPow && is_rewritten(graph_[graph_.arg(id, 1)]);
}

// How tightly the text of a value holds together.
Precedence NodeText::precedence(NodeId id) const {
  const Node& node = graph_[id];
  if (is_bound(id)) return Precedence::kAtom;
  const bool is_negative = (node.op == Op::kIntConst && node.bits < 0) ||
                           (node.op == Op::kFloatConst && std::signbit(node.float_value()) &&
                            !std::isnan(node.float_value()));
  if (is_negative) return Precedence::kPrefix;
  return is_plain_power(id) ? Precedence::kAtom : op_info(node.op).precedence;
}

void NodeText::append_argument(NodeId id, Precedence weakest, int levels,
                               std::vector<Piece>& pieces) const {
  const bool needs_parentheses = precedence(id) < weakest;
  if (needs_parentheses) pieces.push_back({.text = "("});
  pieces.push_back({.value = id, .levels = levels + needs_parentheses});
  if (needs_parentheses) pieces.push_back({.text = ")"});
}

void NodeText::append_list(std::span<const NodeId> values, std::vector<Piece>& pieces) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) pieces.push_back({.text = ", "});
    append_argument(values[i], Precedence::kOr, 1, pieces);
  }
}

void NodeText::append_slice(std::int32_t buffer, std::span<const NodeId> indices,
                            std::vector<Piece>& pieces) const {
  pieces.push_back({.text = buffer_name(buffer)});
  if (indices.empty()) return;
  pieces.back().text += '[';
  append_list(indices, pieces);
  pieces.push_back({.text = "]"});
}

void NodeText::append_pieces(NodeId id, std::vector<Piece>& pieces) const {
  const Node& node = graph_[id];
  const OpInfo& how = op_info(node.op);
  if (how.rule == TypeRule::kLeaf) return pieces.push_back({.text = std::string(how.name)});
  if (how.rule == TypeRule::kConstant) return pieces.push_back({.text = constant_text(node)});
  const std::vector<NodeId> args = shown_args(id);
  const std::span<const NodeId> all = args;
  if (node.op == Op::kLoad) return append_slice(node.buffers[0], all, pieces);
  const bool is_plain = is_plain_power(id);
  if (how.symbol.empty() || is_plain) {
    pieces.push_back({.text = std::string(is_plain ? kPlainPower : how.name) + '('});
    if (node.op == Op::kSum || node.op == Op::kDot) {
      append_slice(node.buffers[0], all.first(node.op == Op::kDot ? node.split : all.size()),
                   pieces);
      if (node.op == Op::kDot) {
        pieces.push_back({.text = ", "});
        append_slice(node.buffers[1], all.subspan(node.split), pieces);
      }
    } else {
      append_list(all, pieces);
    }
    return pieces.push_back({.text = ")"});
  }
  if (args.size() == 1) {
    pieces.push_back({.text = std::string(how.symbol)});
    return append_argument(args[0], Precedence::kPrefix, 1, pieces);
  }
  const auto tighter = static_cast<Precedence>(static_cast<int>(how.precedence) + 1);
  const bool is_power =
      node.op == Op::kPow;  // groups to the right, and its right side may have a prefix
  const bool is_left_open = !is_power && !is_compare(node.op);
  append_argument(args[0], is_left_open ? how.precedence : tighter, 0, pieces);
  pieces.push_back({.text = fmt::format(" {} ", how.symbol)});
  append_argument(args[1], is_power ? Precedence::kPrefix : tighter, is_power, pieces);
}

}  // namespace quire::formula
