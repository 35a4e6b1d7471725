// Evaluates a formula at one point, node by node, in f64 and int64: the definition of what a
// formula means. Converts no types that the graph does not convert, simplifies nothing, skips
// nothing. Reference layer.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "formula/graph.h"
#include "quire/formula.h"
#include "reference/buffer_index.h"
#include "reference/fault.h"
#include "reference/value.h"

namespace quire::reference {

/// Keeps the values of all nodes at the last point. Not thread safe.
class Evaluator {
 public:
  /// Throws Error if a buffer that is read has no data.
  explicit Evaluator(const Formula& formula);
  /// Everything that `roots` depend on. The graph must outlive the evaluator.
  Evaluator(const formula::Graph& graph, std::span<const formula::NodeId> roots);

  /// Evaluates at `point` and returns the value of the (first) root. A fault does not stop it: a
  /// division by zero gives 0, an index outside a buffer reads the nearest element (0 if it is
  /// empty).
  const Value& run(const Point& point);

  // About the last point:
  const Value& operator[](formula::NodeId id) const { return values_[id]; }
  /// The fault of the smallest node id, in any branch.
  const std::optional<Fault>& fault() const { return fault_; }
  /// Where node `id` (kLoad, kSum or kDot) reads its first or second buffer.
  BufferIndex place(formula::NodeId id, std::size_t which) const;

  const formula::Graph& graph() const { return *graph_; }
  /// The ids that are evaluated, ascending.
  std::span<const formula::NodeId> nodes() const { return nodes_; }
  formula::NodeId root() const { return root_; }

 private:
  void check_buffers() const;
  Value compute(formula::NodeId id, const Point& point);
  Value compute_cast(formula::NodeId id) const;
  Value compute_numeric(formula::NodeId id);
  Value compute_load(formula::NodeId id);
  Value compute_sum(formula::NodeId id);
  Value compute_dot(formula::NodeId id);
  BufferIndex checked_place(formula::NodeId id, std::size_t which);
  const Value& arg(formula::NodeId id, std::size_t i) const { return (*this)[graph_->arg(id, i)]; }

  std::optional<Formula> formula_;  // owns the graph if constructed from a formula
  const formula::Graph* graph_;
  formula::NodeId root_;
  std::vector<formula::NodeId> nodes_;
  std::vector<Value> values_;  // by node id
  std::optional<Fault> fault_;
};

}  // namespace quire::reference
