// Applies the type rules and inserts the casts they require. Formula layer.
#include "formula/build.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "formula/op_table.h"
#include "formula/type_rules.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::formula {
namespace {

constexpr std::int64_t kExactDouble = std::int64_t{1} << 53;  // ints up to here are doubles

[[noreturn]] void type_error(Op op, std::string_view needs, std::string_view got) {
  fail(ErrorKind::type, "formula", "'{}' needs {}; got {}", display_name(op), needs, got);
}

NodeId plain(Graph& graph, Op op, ValueType type, std::initializer_list<NodeId> args) {
  return graph.add({.op = op, .type = type}, {args.begin(), args.size()});
}

ValueType type_of(const Graph& graph, NodeId id) { return graph[id].type; }

void require_ints(const Graph& graph, Op op, NodeId a, NodeId b) {
  if (type_of(graph, a) != ValueType::kFloat && type_of(graph, b) != ValueType::kFloat) return;
  const bool shift = op_info(op).rule == TypeRule::kShift;
  type_error(op, shift ? "integers" : "integers or bools",
             fmt::format("{} and {}", type_name(type_of(graph, a)), type_name(type_of(graph, b))));
}

// Integers to the power of a constant n >= 0: repeated squaring, the same products in every
// evaluator.
NodeId int_power(Graph& graph, NodeId base, std::int64_t n) {
  NodeId result = kNoNode;
  for (NodeId square = base; n != 0; n >>= 1) {
    if (n & 1) result = result == kNoNode ? square : make_binary(graph, Op::kMul, result, square);
    if (n > 1) square = make_binary(graph, Op::kMul, square, square);
  }
  return result == kNoNode ? make_int(graph, 1) : result;
}

// Powers that have a name of their own; torch computes them the same way.
NodeId float_power(Graph& graph, NodeId a, NodeId b) {
  if (graph[b].op == Op::kFloatConst) {
    const double n = graph[b].float_value();
    if (n == 1) return a;
    if (n == 2) return make_binary(graph, Op::kMul, a, a);
    if (n == 3) return make_binary(graph, Op::kMul, make_binary(graph, Op::kMul, a, a), a);
    if (n == 0.5) return make_unary(graph, Op::kSqrt, a);
    if (n == -0.5) return make_unary(graph, Op::kRsqrt, a);
    if (n == -1) return make_binary(graph, Op::kDiv, make_float(graph, 1), a);
    if (n == -2)
      return make_binary(graph, Op::kDiv, make_float(graph, 1), make_binary(graph, Op::kMul, a, a));
  }
  return plain(graph, Op::kPow, ValueType::kFloat, {a, b});
}

NodeId make_power(Graph& graph, NodeId a, NodeId b) {
  if (graph[b].op == Op::kBoolConst)
    b = make_cast(graph, b, ValueType::kInt);  // an ordinary constant
  ValueType type = numeric_type(type_of(graph, a), type_of(graph, b));
  const bool constant = graph[b].op == Op::kIntConst;
  if (type == ValueType::kInt && constant && graph[b].bits < 0) type = ValueType::kFloat;
  a = make_cast(graph, a, type);
  if (type == ValueType::kInt && constant) return int_power(graph, a, graph[b].bits);
  b = make_cast(graph, b, type);
  return type == ValueType::kInt ? plain(graph, Op::kPow, type, {a, b}) : float_power(graph, a, b);
}

std::vector<NodeId> int_indices(Graph& graph, const Buffer& buffer,
                                std::span<const NodeId> indices) {
  std::vector<NodeId> ids;
  for (const NodeId index : indices) {
    if (type_of(graph, index) == ValueType::kFloat) {
      fail(ErrorKind::type, "formula", "an index of buffer '{}' must be an integer; got float",
           buffer.name());
    }
    ids.push_back(make_cast(graph, index, ValueType::kInt));
  }
  return ids;
}

// The rest of a buffer's shape after `used` indices; throws unless at least one axis is left.
std::span<const std::int64_t> trailing_shape(Op op, const Buffer& buffer, std::size_t used) {
  const std::span<const std::int64_t> shape = buffer.shape();
  if (used >= shape.size()) {
    fail(ErrorKind::value, "formula",
         "'{}' needs a buffer with axes left to add over; buffer '{}' has shape {} and got {} "
         "indices",
         display_name(op), buffer.name(), to_string(buffer.shape()), used);
  }
  return shape.subspan(used);
}

}  // namespace

NodeId make_leaf(Graph& graph, Op op) {
  return plain(graph, op, op == Op::kScore ? ValueType::kFloat : ValueType::kInt, {});
}

NodeId make_int(Graph& graph, std::int64_t value) {
  return graph.add({.op = Op::kIntConst, .type = ValueType::kInt, .bits = value}, {});
}

NodeId make_float(Graph& graph, double value) {
  if (std::isnan(value))
    value = std::numeric_limits<double>::quiet_NaN();  // one NaN, so that equal means equal
  return graph.add({.op = Op::kFloatConst,
                    .type = ValueType::kFloat,
                    .bits = std::bit_cast<std::int64_t>(value)},
                   {});
}

NodeId make_bool(Graph& graph, bool value) {
  return graph.add({.op = Op::kBoolConst, .type = ValueType::kBool, .bits = value}, {});
}

NodeId make_cast(Graph& graph, NodeId id, ValueType type) {
  const Node node = graph[id];
  if (node.type == type) return id;
  switch (node.op) {
    case Op::kIntConst:
      if (type == ValueType::kBool) return make_bool(graph, node.bits != 0);
      // Beyond 2^53 a double would round before the score type does.
      if (node.bits >= -kExactDouble && node.bits <= kExactDouble)
        return make_float(graph, static_cast<double>(node.bits));
      break;
    case Op::kBoolConst:
      return type == ValueType::kInt ? make_int(graph, node.bits)
                                     : make_float(graph, static_cast<double>(node.bits));
    case Op::kFloatConst:
      // Where the result depends on the score type (1e-50 is 0 in f32; rounding to int), simplify
      // folds it.
      if (type == ValueType::kBool &&
          (node.float_value() == 0 || static_cast<float>(node.float_value()) != 0))
        return make_bool(graph, node.float_value() != 0);
      break;
    default:
      break;
  }
  const Op op = type == ValueType::kInt     ? Op::kToInt
                : type == ValueType::kFloat ? Op::kToFloat
                                            : Op::kToBool;
  return plain(graph, op, type, {id});
}

NodeId make_unary(Graph& graph, Op op, NodeId a) {
  const ValueType type = type_of(graph, a);
  const ValueType numeric = numeric_type(type, type);
  switch (op_info(op).rule) {
    case TypeRule::kCast:
      return make_cast(graph, a,
                       op == Op::kToInt     ? ValueType::kInt
                       : op == Op::kToFloat ? ValueType::kFloat
                                            : ValueType::kBool);
    case TypeRule::kLogic:
      return plain(graph, op, ValueType::kBool, {make_cast(graph, a, ValueType::kBool)});
    case TypeRule::kBits:
      if (type == ValueType::kFloat) type_error(op, "an integer or a bool", "float");
      if (type == ValueType::kBool) return make_unary(graph, Op::kNot, a);
      return plain(graph, op, ValueType::kInt, {a});
    case TypeRule::kNumber:
      a = make_cast(graph, a, numeric);
      if (op == Op::kNeg && graph[a].op == Op::kIntConst)
        return make_int(graph,
                        static_cast<std::int64_t>(-static_cast<std::uint64_t>(graph[a].bits)));
      if (op == Op::kNeg && graph[a].op == Op::kFloatConst)
        return make_float(graph, -graph[a].float_value());
      return plain(graph, op, numeric, {a});
    case TypeRule::kRounding:
      if (type != ValueType::kFloat) return make_cast(graph, a, ValueType::kInt);
      return plain(graph, op, type, {a});
    default:
      return plain(graph, op, ValueType::kFloat, {make_cast(graph, a, ValueType::kFloat)});
  }
}

NodeId make_binary(Graph& graph, Op op, NodeId a, NodeId b) {
  const ValueType ta = type_of(graph, a), tb = type_of(graph, b);
  const bool both_bool = ta == ValueType::kBool && tb == ValueType::kBool;
  ValueType operands = numeric_type(ta, tb), result = operands;
  switch (op_info(op).rule) {
    case TypeRule::kPower:
      return make_power(graph, a, b);
    case TypeRule::kFloat:
      operands = result = ValueType::kFloat;
      break;
    case TypeRule::kBits:
      if (both_bool) {
        const Op logic = op == Op::kBitAnd ? Op::kAnd : op == Op::kBitOr ? Op::kOr : Op::kXor;
        return plain(graph, logic, ValueType::kBool, {a, b});
      }
      [[fallthrough]];
    case TypeRule::kShift:
      require_ints(graph, op, a, b);
      break;
    case TypeRule::kLogic:
      operands = result = ValueType::kBool;
      break;
    case TypeRule::kCompare:
      result = ValueType::kBool;
      break;
    default:
      break;
  }
  const NodeId x = make_cast(graph, a, operands), y = make_cast(graph, b, operands);
  return plain(graph, op, result, {x, y});
}

NodeId make_where(Graph& graph, NodeId condition, NodeId a, NodeId b) {
  const ValueType type = common_type(type_of(graph, a), type_of(graph, b));
  const NodeId c = make_cast(graph, condition, ValueType::kBool);
  const NodeId x = make_cast(graph, a, type), y = make_cast(graph, b, type);
  return plain(graph, Op::kWhere, type, {c, x, y});
}

NodeId make_clamp(Graph& graph, NodeId x, NodeId low, NodeId high) {
  const ValueType type =
      numeric_type(type_of(graph, x), numeric_type(type_of(graph, low), type_of(graph, high)));
  const NodeId a = make_cast(graph, x, type), b = make_cast(graph, low, type),
               c = make_cast(graph, high, type);
  return plain(graph, Op::kClamp, type, {a, b, c});
}

NodeId make_load(Graph& graph, const Buffer& buffer, std::span<const NodeId> indices) {
  if (indices.size() != buffer.shape().size()) {
    fail(ErrorKind::value, "formula",
         "buffer '{}' has rank {} (shape {}) and needs {} indices; got {}", buffer.name(),
         buffer.shape().size(), to_string(buffer.shape()), buffer.shape().size(), indices.size());
  }
  const auto ids = int_indices(graph, buffer, indices);
  return graph.add({.op = Op::kLoad,
                    .type = element_type(buffer.dtype()),
                    .buffers = {graph.add_buffer(buffer), -1}},
                   ids);
}

NodeId make_sum(Graph& graph, const Buffer& buffer, std::span<const NodeId> indices) {
  trailing_shape(Op::kSum, buffer, indices.size());
  const auto ids = int_indices(graph, buffer, indices);
  return graph.add({.op = Op::kSum,
                    .type = element_type(buffer.dtype()),
                    .buffers = {graph.add_buffer(buffer), -1}},
                   ids);
}

void check_dot(const Buffer& a, std::size_t a_indices, const Buffer& b, std::size_t b_indices) {
  const auto left_a = trailing_shape(Op::kDot, a, a_indices);
  const auto left_b = trailing_shape(Op::kDot, b, b_indices);
  if (!std::equal(left_a.begin(), left_a.end(), left_b.begin(), left_b.end())) {
    fail(ErrorKind::value, "formula", "'dot' needs equal shapes; '{}' leaves {} and '{}' leaves {}",
         a.name(), to_string(Shape(left_a)), b.name(), to_string(Shape(left_b)));
  }
}

NodeId make_dot(Graph& graph, const Buffer& a, std::span<const NodeId> a_indices, const Buffer& b,
                std::span<const NodeId> b_indices) {
  check_dot(a, a_indices.size(), b, b_indices.size());
  auto ids = int_indices(graph, a, a_indices);
  const auto more = int_indices(graph, b, b_indices);
  ids.insert(ids.end(), more.begin(), more.end());
  return graph.add({.op = Op::kDot,
                    .type = numeric_type(element_type(a.dtype()), element_type(b.dtype())),
                    .split = static_cast<std::uint8_t>(a_indices.size()),
                    .buffers = {graph.add_buffer(a), graph.add_buffer(b)}},
                   ids);
}

NodeId make_like(Graph& graph, const Graph& from, const Node& node, std::span<const NodeId> args) {
  Node copy = node;
  for (std::int32_t& buffer : copy.buffers)
    if (buffer >= 0) buffer = graph.add_buffer(from.buffer(buffer));
  return graph.add(copy, args);
}

}  // namespace quire::formula
