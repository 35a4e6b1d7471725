// The reverse sweep visits users before their arguments. Test support.
#include "tests/support/point_gradient.h"

#include <algorithm>

#include "formula/type_rules.h"
#include "tests/support/derivative.h"

namespace quire::reference {

using formula::Graph;
using formula::Node;
using formula::NodeId;

namespace {

const Shape& shape_of(const Graph& graph, std::int32_t buffer) {
  return graph.buffer(buffer).shape();
}

// A load, or a sum over trailing axes: every element it read gets `amount`.
void add_to_elements(const Evaluator& values, NodeId id, double amount,
                     BufferGradients& gradients) {
  const Graph& graph = values.graph();
  const std::int32_t buffer = graph[id].buffers[0];
  std::vector<double>& gradient = gradients[static_cast<std::size_t>(buffer)];
  const BufferIndex at = values.place(id, 0);
  if (gradient.empty() || at.nowhere) return;
  const Shape& shape = shape_of(graph, buffer);
  for (std::int64_t k = 0; k < trailing_count(shape, at.indices.rank()); ++k)
    gradient[static_cast<std::size_t>(row_major(shape, with_trailing(shape, at.indices, k)))] +=
        amount;
}

// Each element of the one side gets `amount` times the element of the other.
void add_to_factors(const Evaluator& values, NodeId id, double amount, BufferGradients& gradients) {
  const Graph& graph = values.graph();
  for (const std::size_t side : {0, 1}) {
    const std::int32_t own = graph[id].buffers[side], other = graph[id].buffers[1 - side];
    std::vector<double>& gradient = gradients[static_cast<std::size_t>(own)];
    const BufferIndex at = values.place(id, side), at_other = values.place(id, 1 - side);
    if (gradient.empty() || at.nowhere || at_other.nowhere) continue;
    const Shape &shape = shape_of(graph, own), &other_shape = shape_of(graph, other);
    for (std::int64_t k = 0; k < trailing_count(shape, at.indices.rank()); ++k) {
      const Shape other_element = with_trailing(other_shape, at_other.indices, k);
      const double factor = graph.buffer(other).view().load_float(other_element);
      gradient[static_cast<std::size_t>(row_major(shape, with_trailing(shape, at.indices, k)))] +=
          amount * factor;
    }
  }
}

}  // namespace

BufferGradients zero_gradients(const Graph& graph, WhichBuffers which) {
  BufferGradients gradients;
  for (const Buffer& buffer : graph.buffers()) {
    const bool wanted =
        which == WhichBuffers::kAllFloats ? is_floating(buffer.dtype()) : buffer.wants_gradient();
    gradients.emplace_back(wanted ? static_cast<std::size_t>(element_count(buffer.shape())) : 0,
                           0.0);
  }
  return gradients;
}

double PointGradient::sweep(const Evaluator& values, double d_root, BufferGradients& gradients) {
  const Graph& graph = values.graph();
  std::fill(adjoints_.begin(), adjoints_.end(), 0.0);
  double d_score = 0;
  if (graph[values.root()].type == ValueType::kFloat) add_to(values.root(), d_root, 1);
  const auto nodes = values.nodes();
  for (auto id = nodes.rbegin(); id != nodes.rend(); ++id) {
    if ((*this)[*id] == 0) continue;
    if (graph[*id].op == Op::kScore)
      d_score = (*this)[*id];
    else
      pass_on(values, *id, gradients);
  }
  return d_score;
}

void PointGradient::add_to(NodeId id, double adjoint, double derivative) {
  if (derivative != 0) adjoints_[static_cast<std::size_t>(id)] += adjoint * derivative;
}

// Only floats have a derivative, and only floats made of floats hand it on: constants and casts end
// the way.
void PointGradient::pass_on(const Evaluator& values, NodeId id, BufferGradients& gradients) {
  const Graph& graph = values.graph();
  const Node& node = graph[id];
  const double adjoint = (*this)[id], y = values[id].f;
  const auto args = graph.args(id);
  const auto x = [&](std::size_t i) { return values[args[i]].f; };
  switch (node.op) {
    case Op::kFloatConst:
    case Op::kToFloat:
      return;
    case Op::kLoad:
    case Op::kSum:
      return add_to_elements(values, id, adjoint, gradients);
    case Op::kDot:
      return add_to_factors(values, id, adjoint, gradients);
    case Op::kWhere:
      return add_to(values[args[0]].truth() ? args[1] : args[2], adjoint, 1);
    case Op::kClamp: {
      const auto d = clamp_derivatives(x(0), x(1), x(2));
      for (std::size_t i = 0; i < 3; ++i) add_to(args[i], adjoint, d[i]);
      return;
    }
    default:
      break;
  }
  if (args.size() == 1) return add_to(args[0], adjoint, unary_derivative(node.op, x(0), y));
  const auto d = binary_derivatives(node.op, x(0), x(1), y);
  for (std::size_t i = 0; i < 2; ++i) add_to(args[i], adjoint, d[i]);
}

}  // namespace quire::reference
