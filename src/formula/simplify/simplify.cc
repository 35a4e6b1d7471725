// Simplifies in one forward pass, then copies the nodes that are still reachable. Formula layer.
#include "formula/simplify/simplify.h"

#include <algorithm>

#include "formula/build.h"
#include "formula/simplify/fold.h"
#include "formula/simplify/simplify_rules.h"
#include "formula/type_rules.h"

namespace quire::formula {

NodeId Rewriter::make_int(std::int64_t value) { return formula::make_int(graph_, value); }
NodeId Rewriter::make_float(double value) { return formula::make_float(graph_, value); }
NodeId Rewriter::make_bool(bool value) { return formula::make_bool(graph_, value); }

NodeId Rewriter::copy(const Graph& from, const Node& node, std::span<const NodeId> args) {
  return make_like(graph_, from, node, args);
}

const AffineForm& Rewriter::form(NodeId id) {
  extend_affine_forms(graph_, forms_);
  return forms_[id];
}

std::optional<std::int64_t> Rewriter::int_value(NodeId id) const {
  if (!is(id, Op::kIntConst)) return std::nullopt;
  return graph_[id].bits;
}

std::optional<double> Rewriter::float_value(NodeId id) const {
  if (!is(id, Op::kFloatConst)) return std::nullopt;
  return constant_value(graph_[id], precision_);
}

std::optional<bool> Rewriter::bool_value(NodeId id) const {
  if (!is(id, Op::kBoolConst)) return std::nullopt;
  return graph_[id].bits != 0;
}

NodeId Rewriter::fold_constants(const Term& term) {
  std::array<Node, 3> constants;
  for (std::size_t i = 0; i < term.arg_count; ++i) {
    constants[i] = graph_[term.args[i]];
    if (!is_constant(constants[i].op)) return kNoNode;
  }
  const std::optional<Node> result =
      fold(term.op, term.type, {constants.data(), term.arg_count}, precision_);
  return result ? make_constant(*result) : kNoNode;
}

// The existing node with exchanged arguments, if any: b + a for a + b, b > a for a < b. Not for
// minimum and maximum of floats: whether they give -0 or +0 may depend on the order.
NodeId Rewriter::existing_mirror(const Term& term) const {
  const bool min_or_max = term.op == Op::kMin || term.op == Op::kMax;
  if (min_or_max && term.type == ValueType::kFloat) return kNoNode;
  if (!is_commutative(term.op) && !is_compare(term.op)) return kNoNode;
  const Op op = is_compare(term.op) ? mirrored(term.op) : term.op;
  const std::array<NodeId, 2> exchanged = {term.args[1], term.args[0]};
  return graph_.find({.op = op, .type = term.type}, exchanged);
}

// An affine integer that equals a constant or one of the positions.
NodeId Rewriter::collapsed(NodeId id) {
  const AffineForm f = form(id);
  if (f.is_constant()) return make_int(f.c);
  if (!f.is_exact() || f.c != 0) return id;
  const std::array<std::int64_t, 4> factors = {f.b, f.h, f.q, f.kv};
  constexpr std::array<Op, 4> kLeaves = {Op::kBatch, Op::kHead, Op::kQIdx, Op::kKvIdx};
  const auto zeros = std::count(factors.begin(), factors.end(), 0);
  const auto one = std::find(factors.begin(), factors.end(), 1);
  if (zeros != 3 || one == factors.end()) return id;
  return make_leaf(graph_, kLeaves[one - factors.begin()]);
}

NodeId Rewriter::make(const Term& term) {
  NodeId found = fold_constants(term);
  if (found == kNoNode) {
    found = term.op == Op::kWhere ? simplify_choice(*this, term)
                                  : simplify_operation_on_choice(*this, term);
  }
  if (found == kNoNode) {
    switch (term.type) {
      case ValueType::kInt:
        found = simplify_int(*this, term);
        break;
      case ValueType::kFloat:
        found = simplify_float(*this, term);
        break;
      case ValueType::kBool:
        found = simplify_bool(*this, term);
        break;
    }
  }
  if (found == kNoNode) found = existing_mirror(term);
  if (found != kNoNode) return found;
  const NodeId id =
      graph_.add({.op = term.op, .type = term.type}, {term.args.data(), term.arg_count});
  return term.type == ValueType::kInt ? collapsed(id) : id;
}

namespace {

// Which of the nodes up to the last root are used by any root.
std::vector<char> used_by(const Graph& graph, std::span<const NodeId> roots) {
  const NodeId last = roots.empty() ? kNoNode : *std::max_element(roots.begin(), roots.end());
  std::vector<char> used(last + 1, 0);
  for (const NodeId root : roots) used[root] = 1;
  for (NodeId id = last; id >= 0; --id) {
    if (!used[id]) continue;
    for (const NodeId arg : graph.args(id)) used[arg] = 1;
  }
  return used;
}

// Rewrites everything in `from` that the roots depend on; returns the new ids by old id.
std::vector<NodeId> rewrite(const Graph& from, std::span<const NodeId> roots, Rewriter& rewriter) {
  const std::vector<char> used = used_by(from, roots);
  std::vector<NodeId> simple(used.size(), kNoNode), args;
  args.reserve(kMaxRank);
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const Node& node = from[static_cast<NodeId>(i)];
    args.clear();
    for (const NodeId arg : from.args(static_cast<NodeId>(i))) args.push_back(simple[arg]);
    if (node.arg_count == 0 || is_read(node.op)) {
      simple[i] = rewriter.copy(from, node, args);
      continue;
    }
    Term term{node.op, node.type, {kNoNode, kNoNode, kNoNode}, args.size()};
    std::copy(args.begin(), args.end(), term.args.begin());
    simple[i] = rewriter.make(term);
  }
  return simple;
}

}  // namespace

std::vector<NodeId> simplify_into(const Graph& from, std::span<const NodeId> roots,
                                  Precision precision, Graph& to) {
  std::vector<NodeId> results, map;
  if (from.size() > kMaxSimplified) {
    for (const NodeId root : roots) results.push_back(copy_reachable(from, root, to, map));
    return results;
  }
  Rewriter rewriter(precision);
  const std::vector<NodeId> simple = rewrite(from, roots, rewriter);
  for (const NodeId root : roots) {
    results.push_back(copy_reachable(rewriter.graph(), simple[root], to, map));
  }
  return results;
}

Formula simplify(const Formula& formula, Precision precision) {
  if (formula.size() > kMaxSimplified) return formula;
  Rewriter rewriter(precision);
  const NodeId root = formula.root();
  const std::vector<NodeId> simple = rewrite(formula.graph(), {&root, 1}, rewriter);
  return Formula(rewriter.graph(), simple[root]);
}

}  // namespace quire::formula
