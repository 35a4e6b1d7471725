// The interface of simplification rules. A Term is an operation about to be created; a family of
// rules returns an equal value that exists or needs no more operations, or kNoNode. Used only by
// simplify*.cc. Formula layer.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formula/bound/affine.h"
#include "formula/graph.h"
#include "quire/formula.h"

namespace quire::formula {

/// An operation with up to three arguments that are already simplified.
struct Term {
  Op op;
  ValueType type;
  std::array<NodeId, 3> args;
  std::size_t arg_count;
};

class Rewriter {
 public:
  explicit Rewriter(Precision precision) : precision_(precision) {}

  /// The simplified value of a term. Rules call it again on their result; every rule makes its term
  /// simpler, so that ends after a few steps, whatever the depth of the graph.
  NodeId make(const Term& term);
  NodeId make(Op op, ValueType type, NodeId a) { return make({op, type, {a}, 1}); }
  NodeId make(Op op, ValueType type, NodeId a, NodeId b) { return make({op, type, {a, b}, 2}); }
  NodeId make(Op op, ValueType type, NodeId a, NodeId b, NodeId c) {
    return make({op, type, {a, b, c}, 3});
  }
  NodeId make_int(std::int64_t value);
  NodeId make_float(double value);
  NodeId make_bool(bool value);
  NodeId make_constant(const Node& constant) { return graph_.add(constant, {}); }

  /// A node without rules: a leaf or a load.
  NodeId copy(const Graph& from, const Node& node, std::span<const NodeId> args);

  const Graph& graph() const { return graph_; }
  Precision precision() const { return precision_; }
  bool is(NodeId id, Op op) const { return graph_[id].op == op; }
  NodeId arg(NodeId id, std::size_t i) const { return graph_.arg(id, i); }
  ValueType type(NodeId id) const { return graph_[id].type; }
  const AffineForm& form(NodeId id);

  /// The value of a constant of that type; nullopt for other nodes. Floats are rounded to the
  /// precision.
  std::optional<std::int64_t> int_value(NodeId id) const;
  std::optional<double> float_value(NodeId id) const;
  std::optional<bool> bool_value(NodeId id) const;

 private:
  NodeId fold_constants(const Term& term);
  NodeId existing_mirror(const Term& term) const;
  NodeId collapsed(NodeId id);

  Graph graph_;
  std::vector<AffineForm> forms_;  // of graph_; extended on demand
  Precision precision_;
};

// The families. Each handles the terms it knows and returns kNoNode for all others.

NodeId simplify_int(Rewriter& rewriter, const Term& term);     // results of type int
NodeId simplify_float(Rewriter& rewriter, const Term& term);   // results of type float
NodeId simplify_bool(Rewriter& rewriter, const Term& term);    // logic, comparisons, casts to bool
NodeId simplify_choice(Rewriter& rewriter, const Term& term);  // where, of any type
/// An operation on a choice between constants: a choice between its results.
NodeId simplify_operation_on_choice(Rewriter& rewriter, const Term& term);

/// The comparison that holds exactly when `op` does not (for floats only == and != have one).
Op complement(Op op);
/// The comparison with its sides exchanged: a < b is b > a.
Op mirrored(Op op);

}  // namespace quire::formula
