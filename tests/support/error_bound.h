// Evaluates a formula in f64 and carries, for each node, a running bound on how far an evaluation
// of the same graph in f32 can be from it. Where a decision (a comparison, a floor, an index, an
// overflow) could fall differently in f32 the value is marked uncertain; tests skip those. The
// rules per operation are in float_error.h. Test support.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "reference/evaluate.h"
#include "tests/support/float_error.h"

namespace quire::reference {

/// Keeps the values and bounds of all nodes at the last point. Not for use by two threads at once.
class BoundedEvaluator {
 public:
  explicit BoundedEvaluator(const Formula& formula, const ErrorModel& model = {});
  /// The graph must outlive the evaluator.
  BoundedEvaluator(const formula::Graph& graph, std::span<const formula::NodeId> roots,
                   const ErrorModel& model = {});

  /// Evaluates at `point`, whose score is meant to be an f32 (else it counts as rounded to one),
  /// and returns the value of the (first) root.
  const Value& run(const Point& point);

  // About the last point:
  const Value& value(formula::NodeId id) const { return values_[id]; }
  /// Of an integer or a bool: certain means equal.
  const Bound& bound(formula::NodeId id) const { return bounds_[static_cast<std::size_t>(id)]; }
  const Bound& bound() const { return bound(values_.root()); }
  /// A fault of the f64 evaluation. One whose node is uncertain need not happen in f32.
  const std::optional<Fault>& fault() const { return values_.fault(); }
  const Evaluator& evaluator() const { return values_; }

 private:
  Bound compute(formula::NodeId id) const;
  Bound compute_logic(formula::NodeId id) const;
  Bound compute_float(formula::NodeId id) const;
  Bound compute_load(formula::NodeId id) const;
  Bound compute_sum(formula::NodeId id) const;
  Bound compute_dot(formula::NodeId id) const;
  Bound decided(bool certain) const { return certain ? Bound::exact() : Bound::unknown(); }
  bool any_argument_uncertain(formula::NodeId id) const;
  Approx arg(formula::NodeId id, std::size_t i) const;

  Evaluator values_;
  ErrorModel model_;
  std::vector<Bound> bounds_;  // by node id
};

}  // namespace quire::reference
