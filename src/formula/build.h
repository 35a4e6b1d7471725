// Typed construction of nodes: applies the rules of type_rules.h, inserts casts, checks arity and
// rank, and throws an Error that names the operation and the types. Every pass creates its nodes
// through these functions. Formula layer.
#pragma once
#include <cstdint>
#include <span>

#include "formula/graph.h"

namespace quire::formula {

NodeId make_leaf(Graph& graph, Op op);
NodeId make_int(Graph& graph, std::int64_t value);
NodeId make_float(Graph& graph, double value);
NodeId make_bool(Graph& graph, bool value);

/// `id` as `type`; constants are converted immediately, so that a literal never carries a cast.
NodeId make_cast(Graph& graph, NodeId id, ValueType type);

NodeId make_unary(Graph& graph, Op op, NodeId a);
NodeId make_binary(Graph& graph, Op op, NodeId a, NodeId b);
NodeId make_where(Graph& graph, NodeId condition, NodeId a, NodeId b);
NodeId make_clamp(Graph& graph, NodeId x, NodeId low, NodeId high);

/// One index per axis of the buffer.
NodeId make_load(Graph& graph, const Buffer& buffer, std::span<const NodeId> indices);
/// The sum over the axes that are not indexed (at least one).
NodeId make_sum(Graph& graph, const Buffer& buffer, std::span<const NodeId> indices);
/// Throws Error unless the rest of both buffers, after these numbers of indices, has the same
/// shape.
void check_dot(const Buffer& a, std::size_t a_indices, const Buffer& b, std::size_t b_indices);
/// The dot product of the rest of two buffers; the remaining shapes must be equal.
NodeId make_dot(Graph& graph, const Buffer& a, std::span<const NodeId> a_indices, const Buffer& b,
                std::span<const NodeId> b_indices);

/// The operation of `node` (of `from`) with other arguments of the right types. For passes that
/// rewrite.
NodeId make_like(Graph& graph, const Graph& from, const Node& node, std::span<const NodeId> args);

}  // namespace quire::formula
