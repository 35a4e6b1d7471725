// The derivative of each operation, as cotangents: given g = d(out)/d(node), d(out)/d(argument).
// Used by differentiate.cc alone. Layer: formula.
#pragma once
#include <array>

#include "formula/graph.h"

namespace quire::formula {

/// Whether a float result can vary smoothly with its float argument `arg`: not through floor or
/// sign, nor through the condition of a where.
bool is_differentiable(const Graph& graph, NodeId id, std::size_t arg);

/// The cotangents of the arguments of `id`, made only for those in `wanted`; kNoNode for the
/// others.
std::array<NodeId, 3> pull_back(Graph& graph, NodeId id, NodeId g,
                                const std::array<bool, 3>& wanted);

}  // namespace quire::formula
