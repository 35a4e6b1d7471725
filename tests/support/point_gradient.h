// The gradient of a formula at one point, by one reverse sweep over the values of an Evaluator,
// with respect to the score and to every element of the captured float buffers. Independent of
// formula/gradient, which is tested against it. Test support.
#pragma once
#include <span>
#include <vector>

#include "reference/evaluate.h"

namespace quire::reference {

/// One dense gradient per buffer of the graph, row-major, of the buffer's number of elements; empty
/// where not wanted.
using BufferGradients = std::vector<std::vector<double>>;

/// Zeros for the float buffers of a graph: all of them, or those that want a gradient.
enum class WhichBuffers { kAllFloats, kWantGradient };
BufferGradients zero_gradients(const formula::Graph& graph, WhichBuffers which);

class PointGradient {
 public:
  explicit PointGradient(const formula::Graph& graph) : adjoints_(graph.size()) {}

  /// Takes `d_root`, the derivative of something by the root of `values` (at its last point), back
  /// through the graph: returns the derivative by the score and adds those by the elements of
  /// buffers to `gradients`. Where a derivative is 0 nothing is passed on, so a branch that `where`
  /// did not take adds exactly nothing, were its slope inf or NaN.
  double sweep(const Evaluator& values, double d_root, BufferGradients& gradients);

  /// The derivative by node `id` in the last sweep; 0 for what is not a float.
  double operator[](formula::NodeId id) const { return adjoints_[static_cast<std::size_t>(id)]; }

 private:
  void pass_on(const Evaluator& values, formula::NodeId id, BufferGradients& gradients);
  void add_to(formula::NodeId id, double adjoint, double derivative);

  std::vector<double> adjoints_;  // by node id
};

}  // namespace quire::reference
