// One loop over node ids; arguments come before their users. Reference layer.
#include "reference/evaluate.h"

#include <algorithm>
#include <cmath>

#include "formula/type_rules.h"
#include "reference/arithmetic.h"
#include "runtime/fail.h"

namespace quire::reference {

using formula::Graph;
using formula::Node;
using formula::NodeId;

namespace {

std::vector<NodeId> reachable_from(const Graph& graph, std::span<const NodeId> roots) {
  std::vector<char> used(graph.size(), 0);
  for (const NodeId root : roots) used[root] = 1;
  std::vector<NodeId> ids;
  for (NodeId id = static_cast<NodeId>(graph.size()); id-- > 0;) {
    if (!used[id]) continue;
    ids.push_back(id);
    for (const NodeId arg : graph.args(id)) used[arg] = 1;
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

bool is_float_buffer(const Buffer& buffer) {
  return formula::element_type(buffer.dtype()) == ValueType::kFloat;
}

}  // namespace

Evaluator::Evaluator(const Formula& formula)
    : formula_(formula),
      graph_(&formula_->graph()),
      root_(formula.root()),
      nodes_(reachable_from(*graph_, {&root_, 1})),
      values_(graph_->size()) {
  check_buffers();
}

Evaluator::Evaluator(const Graph& graph, std::span<const NodeId> roots)
    : graph_(&graph),
      root_(roots.front()),
      nodes_(reachable_from(graph, roots)),
      values_(graph.size()) {
  check_buffers();
}

void Evaluator::check_buffers() const {
  for (const NodeId id : nodes_) {
    for (const std::int32_t i : (*graph_)[id].buffers) {
      if (i < 0 || graph_->buffer(i).has_data()) continue;
      fail(ErrorKind::value, "formula", "buffer '{}' is only declared: it has no data to evaluate",
           graph_->buffer(i).name());
    }
  }
}

const Value& Evaluator::run(const Point& point) {
  fault_.reset();
  for (const NodeId id : nodes_) values_[id] = compute(id, point);
  return (*this)[root_];
}

Value Evaluator::compute(NodeId id, const Point& point) {
  const Node& node = (*graph_)[id];
  switch (node.op) {
    case Op::kScore:
      return Value::of_float(point.score);
    case Op::kBatch:
      return Value::of_int(point.b);
    case Op::kHead:
      return Value::of_int(point.h);
    case Op::kQIdx:
      return Value::of_int(point.q_idx);
    case Op::kKvIdx:
      return Value::of_int(point.kv_idx);
    case Op::kIntConst:
      return Value::of_int(node.bits);
    case Op::kFloatConst:
      return Value::of_float(node.float_value());
    case Op::kBoolConst:
      return Value::of_bool(node.bits != 0);
    case Op::kToInt:
    case Op::kToFloat:
    case Op::kToBool:
      return compute_cast(id);
    case Op::kNot:
      return Value::of_bool(!arg(id, 0).truth());
    case Op::kAnd:
      return Value::of_bool(arg(id, 0).truth() && arg(id, 1).truth());
    case Op::kOr:
      return Value::of_bool(arg(id, 0).truth() || arg(id, 1).truth());
    case Op::kXor:
      return Value::of_bool(arg(id, 0).truth() != arg(id, 1).truth());
    case Op::kWhere:
      return arg(id, 0).truth() ? arg(id, 1) : arg(id, 2);
    case Op::kLoad:
      return compute_load(id);
    case Op::kSum:
      return compute_sum(id);
    case Op::kDot:
      return compute_dot(id);
    default:
      return compute_numeric(id);
  }
}

Value Evaluator::compute_cast(NodeId id) const {
  const Value& x = arg(id, 0);
  switch ((*graph_)[id].op) {
    case Op::kToInt:
      return Value::of_int(x.type == ValueType::kFloat ? float_to_int(x.f) : x.i);
    case Op::kToFloat:
      return Value::of_float(x.number());
    default:
      return Value::of_bool(x.truth());
  }
}

// Functions and operators on numbers; all arguments have one type.
Value Evaluator::compute_numeric(NodeId id) {
  const Op op = (*graph_)[id].op;
  const Value& a = arg(id, 0);
  const bool is_float = a.type == ValueType::kFloat;
  if (op == Op::kClamp) {
    const Value &low = arg(id, 1), &high = arg(id, 2);
    if (is_float)
      return Value::of_float(float_binary(Op::kMin, float_binary(Op::kMax, a.f, low.f), high.f));
    return Value::of_int(int_binary(Op::kMin, int_binary(Op::kMax, a.i, low.i), high.i));
  }
  if (graph_->args(id).size() == 1)
    return is_float ? Value::of_float(float_unary(op, a.f)) : Value::of_int(int_unary(op, a.i));
  const Value& b = arg(id, 1);
  if (formula::is_compare(op))
    return Value::of_bool(is_float ? compare(op, a.f, b.f) : compare(op, a.i, b.i));
  if (is_float) return Value::of_float(float_binary(op, a.f, b.f));
  const bool divides = op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b.i == 0 && !fault_)
    fault_ = Fault{.kind = FaultKind::kDivisionByZero, .node = id};
  return Value::of_int(int_binary(op, a.i, b.i));
}

BufferIndex Evaluator::place(NodeId id, std::size_t which) const {
  const Node& node = (*graph_)[id];
  const auto args = graph_->args(id);
  // For kDot, the first `split` arguments index the first buffer and the rest the second.
  const std::size_t split = node.op == Op::kDot ? node.split : args.size();
  const auto own = which == 0 ? args.first(split) : args.subspan(split);
  Shape given;
  for (const NodeId index : own) given.push_back((*this)[index].i);
  return buffer_index(graph_->buffer(node.buffers[which]).shape(), given);
}

BufferIndex Evaluator::checked_place(NodeId id, std::size_t which) {
  BufferIndex result = place(id, which);
  if (result.outside && !fault_) {
    fault_ = Fault{.kind = FaultKind::kIndex,
                   .node = id,
                   .buffer = graph_->buffer((*graph_)[id].buffers[which]).name(),
                   .axis = result.outside->axis,
                   .index = result.outside->index,
                   .size = result.outside->size};
  }
  return result;
}

Value Evaluator::compute_load(NodeId id) {
  const Buffer& buffer = graph_->buffer((*graph_)[id].buffers[0]);
  const BufferIndex at = checked_place(id, 0);
  if (is_float_buffer(buffer))
    return Value::of_float(at.nowhere ? 0 : buffer.view().load_float(at.indices));
  return Value::of_int(at.nowhere ? 0 : buffer.view().load_int(at.indices));
}

Value Evaluator::compute_sum(NodeId id) {
  const ConstTensorView& view = graph_->buffer((*graph_)[id].buffers[0]).view();
  const BufferIndex at = checked_place(id, 0);
  const std::int64_t count = at.nowhere ? 0 : trailing_count(view.shape(), at.indices.rank());
  double float_sum = 0;
  std::int64_t int_sum = 0;
  const bool is_float = (*graph_)[id].type == ValueType::kFloat;
  for (std::int64_t k = 0; k < count; ++k) {
    const Shape element = with_trailing(view.shape(), at.indices, k);
    if (is_float)
      float_sum += view.load_float(element);
    else
      int_sum = int_binary(Op::kAdd, int_sum, view.load_int(element));
  }
  return is_float ? Value::of_float(float_sum) : Value::of_int(int_sum);
}

Value Evaluator::compute_dot(NodeId id) {
  const ConstTensorView& a = graph_->buffer((*graph_)[id].buffers[0]).view();
  const ConstTensorView& b = graph_->buffer((*graph_)[id].buffers[1]).view();
  const BufferIndex at_a = checked_place(id, 0), at_b = checked_place(id, 1);
  const std::int64_t count =
      at_a.nowhere || at_b.nowhere ? 0 : trailing_count(a.shape(), at_a.indices.rank());
  double float_sum = 0;
  std::int64_t int_sum = 0;
  const bool is_float = (*graph_)[id].type == ValueType::kFloat;
  for (std::int64_t k = 0; k < count; ++k) {
    const Shape in_a = with_trailing(a.shape(), at_a.indices, k);
    const Shape in_b = with_trailing(b.shape(), at_b.indices, k);
    if (is_float) {
      float_sum = std::fma(a.load_float(in_a), b.load_float(in_b), float_sum);
    } else {
      const std::int64_t product = int_binary(Op::kMul, a.load_int(in_a), b.load_int(in_b));
      int_sum = int_binary(Op::kAdd, int_sum, product);
    }
  }
  return is_float ? Value::of_float(float_sum) : Value::of_int(int_sum);
}

}  // namespace quire::reference
