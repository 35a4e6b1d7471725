// Derivatives of a score mod as formulas, with respect to the score and to every element of the
// captured float buffers it reads. Reverse mode on the graph; value and derivatives share one graph
// so that a kernel can compile them together. Does not know masks or how gradients are summed over
// elements. Formula layer.
//
// At kinks it chooses as PyTorch does: abs'(0) = 0; relu'(0) = 0; minimum and maximum split ties in
// halves; clamp passes the gradient at its ends; sign, floor, ceil, round, trunc, //, comparisons
// and integers have derivative 0; x % y has 1 and -(x // y). In where(c, a, b) the branch not taken
// gets 0, and as in PyTorch that 0 is then multiplied by the branch's own derivative: where(x > 0,
// sqrt(x), 0) has a NaN at x = 0 (0 * inf). Write where(x > 0, sqrt(where(x > 0, x, 1)), 0).
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "formula/graph.h"
#include "quire/formula.h"

namespace quire::formula {

/// Which buffers get derivatives.
enum class GradientBuffers : std::uint8_t {
  kMarked,     // those that want a gradient: what the backward pass needs
  kAllFloats,  // every float buffer: to explain a formula
};

struct Derivatives {
  /// A place where the value reads a float buffer.
  struct Site {
    NodeId node;          // kLoad, kSum or kDot in `graph`; its arguments are the indices
    int side;             // which of the node's buffers: 0, or for kDot 0 or 1
    std::int32_t buffer;  // index into graph.buffers()
    /// kLoad: d(value)/d(element read). kSum: the same for every summed element. kDot: for element
    /// d of this side, factor * (element d of the other side).
    NodeId factor;
  };

  Graph graph;
  NodeId value;             // the formula itself, simplified
  NodeId d_score;           // d(value)/d(score); the constant 0.0 if it does not use the score
  std::vector<Site> sites;  // ascending by node, then side; one per distinct read

  Formula formula(NodeId id) const { return Formula(graph, id); }
};

/// `score_mod` may be of any type; an integer or bool has derivative 0. All formulas of the result
/// are simplified for `precision`. Throws Error if they have more than kMaxNodes values together.
Derivatives differentiate(const Formula& score_mod, Precision precision,
                          GradientBuffers buffers = GradientBuffers::kMarked);

/// Whether a float result can vary smoothly with its float argument `arg`: not through floor or
/// sign, nor through the condition of a where.
bool is_differentiable(const Graph& graph, NodeId id, std::size_t arg);

/// The cotangents of the arguments of `id`, made only for those in `wanted`; kNoNode for the
/// others.
std::array<NodeId, 3> pull_back(Graph& graph, NodeId id, NodeId g,
                                const std::array<bool, 3>& wanted);

}  // namespace quire::formula
