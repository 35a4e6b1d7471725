// The walk over the graph: which decisions are certain, and sums and dots as chains. Test
// support.
#include "tests/support/error_bound.h"

#include <algorithm>
#include <cmath>

#include "formula/type_rules.h"
#include "reference/arithmetic.h"

namespace quire::reference {

using formula::Graph;
using formula::Node;
using formula::NodeId;

namespace {

// An element of a buffer as the f32 program has it: f64 and large integers are rounded.
Approx element(const ConstTensorView& view, const Shape& indices) {
  const double value = view.load_float(indices);
  return {value, rounding_error(value).error};
}

}  // namespace

BoundedEvaluator::BoundedEvaluator(const Formula& formula, const ErrorModel& model)
    : values_(formula), model_(model), bounds_(values_.graph().size()) {}

BoundedEvaluator::BoundedEvaluator(const Graph& graph, std::span<const NodeId> roots,
                                   const ErrorModel& model)
    : values_(graph, roots), model_(model), bounds_(graph.size()) {}

const Value& BoundedEvaluator::run(const Point& point) {
  const Value& result = values_.run(point);
  for (const NodeId id : values_.nodes()) bounds_[static_cast<std::size_t>(id)] = compute(id);
  return result;
}

Approx BoundedEvaluator::arg(NodeId id, std::size_t i) const {
  const NodeId a = values_.graph().arg(id, i);
  return {value(a).f, bound(a).error};
}

bool BoundedEvaluator::any_argument_uncertain(NodeId id) const {
  const auto args = values_.graph().args(id);
  return std::any_of(args.begin(), args.end(), [&](NodeId a) { return bound(a).uncertain; });
}

Bound BoundedEvaluator::compute(NodeId id) const {
  const Graph& graph = values_.graph();
  const Node& node = graph[id];
  const auto args = graph.args(id);
  if (node.op == Op::kWhere) {
    if (bound(args[0]).uncertain) return Bound::unknown();
    return bound(value(args[0]).truth() ? args[1] : args[2]);
  }
  if (node.op == Op::kAnd || node.op == Op::kOr) return compute_logic(id);
  if (any_argument_uncertain(id)) return Bound::unknown();

  const bool of_floats = !args.empty() && graph[args[0]].type == ValueType::kFloat;
  switch (node.op) {
    case Op::kScore:
    case Op::kFloatConst:
    case Op::kToFloat:
      return rounding_error(value(id).f);  // a cast from int or bool; there is none from float
    case Op::kToInt:
      return decided(!of_floats || is_to_int_certain(arg(id, 0)));
    case Op::kToBool:
      return decided(!of_floats || is_comparison_certain(arg(id, 0), {0, 0}));
    case Op::kLoad:
      return compute_load(id);
    case Op::kSum:
      return compute_sum(id);
    case Op::kDot:
      return compute_dot(id);
    default:
      break;
  }
  if (of_floats && formula::is_compare(node.op))
    return decided(is_comparison_certain(arg(id, 0), arg(id, 1)));
  return of_floats ? compute_float(id) : Bound::exact();
}

// An argument that decides alone makes the other one's uncertainty harmless.
Bound BoundedEvaluator::compute_logic(NodeId id) const {
  const bool deciding = values_.graph()[id].op == Op::kOr;
  for (const NodeId a : values_.graph().args(id))
    if (!bound(a).uncertain && value(a).truth() == deciding) return Bound::exact();
  return decided(!any_argument_uncertain(id));
}

Bound BoundedEvaluator::compute_float(NodeId id) const {
  const Op op = values_.graph()[id].op;
  const Approx a = arg(id, 0);
  if (op == Op::kClamp) {
    Approx raised{float_binary(Op::kMax, a.value, arg(id, 1).value), 0};
    raised.error = binary_error(Op::kMax, a, arg(id, 1), raised.value, model_).error;
    return binary_error(Op::kMin, raised, arg(id, 2), value(id).f, model_);
  }
  if (values_.graph().args(id).size() == 1) return unary_error(op, a, value(id).f, model_);
  return binary_error(op, a, arg(id, 1), value(id).f, model_);
}

Bound BoundedEvaluator::compute_load(NodeId id) const {
  if (value(id).type != ValueType::kFloat) return Bound::exact();
  return rounding_error(value(id).f);
}

// One chain from 0 over the flattened trailing index, as in evaluate.cc.
Bound BoundedEvaluator::compute_sum(NodeId id) const {
  if (value(id).type != ValueType::kFloat) return Bound::exact();
  const Graph& graph = values_.graph();
  const ConstTensorView& view = graph.buffer(graph[id].buffers[0]).view();
  const BufferIndex at = values_.place(id, 0);
  const std::int64_t count = at.nowhere ? 0 : trailing_count(view.shape(), at.indices.rank());
  Approx sum;
  for (std::int64_t k = 0; k < count; ++k) {
    const Approx x = element(view, with_trailing(view.shape(), at.indices, k));
    const double next = sum.value + x.value;
    const Bound bound = binary_error(Op::kAdd, sum, x, next, model_);
    if (bound.uncertain || std::isinf(x.error)) return Bound::unknown();
    sum = {next, bound.error};
  }
  return {sum.error, false};
}

Bound BoundedEvaluator::compute_dot(NodeId id) const {
  if (value(id).type != ValueType::kFloat) return Bound::exact();
  const Graph& graph = values_.graph();
  const ConstTensorView& a = graph.buffer(graph[id].buffers[0]).view();
  const ConstTensorView& b = graph.buffer(graph[id].buffers[1]).view();
  const BufferIndex at_a = values_.place(id, 0), at_b = values_.place(id, 1);
  const std::int64_t count =
      at_a.nowhere || at_b.nowhere ? 0 : trailing_count(a.shape(), at_a.indices.rank());
  Approx sum;
  for (std::int64_t k = 0; k < count; ++k) {
    const Approx x = element(a, with_trailing(a.shape(), at_a.indices, k));
    const Approx y = element(b, with_trailing(b.shape(), at_b.indices, k));
    const double next = std::fma(x.value, y.value, sum.value);
    const Bound bound = fma_error(x, y, sum, next);
    if (bound.uncertain || std::isinf(x.error) || std::isinf(y.error)) return Bound::unknown();
    sum = {next, bound.error};
  }
  return {sum.error, false};
}

}  // namespace quire::reference
