// Finds the nodes of a graph that are a page, an offset in a page or a key, and replaces them.
// Comparisons of a page or a key with a number whose result is the same for all live (or all dead)
// pages become constants. Formula layer.
#include "formula/logical_keys.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/simplify/simplify.h"
#include "formula/simplify/simplify_rules.h"

namespace quire::formula {
namespace {

// Whether two patterns read the same memory in the same way.
bool is_same(const PagePattern& a, const PagePattern& b) {
  if (a.page_size != b.page_size || a.row != b.row || !is_same_buffer(a.table, b.table))
    return false;
  if (a.row_list.has_value() != b.row_list.has_value()) return false;
  return !a.row_list.has_value() || is_same_buffer(*a.row_list, *b.row_list);
}

constexpr NodeId kMostNodes = 4096;  // searching a larger formula would take too long

bool is_leaf(const Graph& graph, NodeId id, Op op) { return graph[id].op == op; }

std::optional<std::int64_t> int_of(const Graph& graph, NodeId id) {
  if (graph[id].op != Op::kIntConst) return std::nullopt;
  return graph[id].bits;
}

bool is_int(const Graph& graph, NodeId id, std::int64_t value) {
  return graph[id].op == Op::kIntConst && graph[id].bits == value;
}

bool is_integers(const Buffer& buffer, std::size_t rank) {
  return !is_floating(buffer.dtype()) && buffer.dtype() != DType::boolean &&
         buffer.shape().rank() == rank;
}

// The size in `kv_idx // size`.
std::optional<std::int64_t> page_size_of(const Graph& graph, NodeId id) {
  if (graph[id].op != Op::kFloorDiv || !is_leaf(graph, graph.arg(id, 0), Op::kKvIdx))
    return std::nullopt;
  const std::optional<std::int64_t> size = int_of(graph, graph.arg(id, 1));
  return size.has_value() && *size >= 1 ? size : std::nullopt;
}

// The pattern whose page this node loads, if it is such a load.
std::optional<PagePattern> page_load(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  if (node.op != Op::kLoad || node.arg_count != 2) return std::nullopt;
  const Buffer& table = graph.buffer(node.buffers[0]);
  const std::optional<std::int64_t> size = page_size_of(graph, graph.arg(id, 1));
  if (!size.has_value() || !is_integers(table, 2)) return std::nullopt;
  PagePattern pattern{.table = table, .page_size = *size};
  const NodeId row = graph.arg(id, 0);
  const Node& of_row = graph[row];
  if (of_row.op == Op::kBatch) return pattern;
  if (of_row.op == Op::kIntConst) {
    pattern.row = of_row.bits;
    return pattern;
  }
  if (of_row.op != Op::kLoad || of_row.arg_count != 1) return std::nullopt;
  const Buffer& list = graph.buffer(of_row.buffers[0]);
  if (!is_leaf(graph, graph.arg(row, 0), Op::kBatch) || !is_integers(list, 1)) return std::nullopt;
  pattern.row_list = list;
  return pattern;
}

// The roles of a graph's nodes in a pattern.
class Roles {
 public:
  Roles(const Graph& graph, const PagePattern& pattern) : graph_(graph), pattern_(pattern) {}

  bool is_page(NodeId id) const {
    const std::optional<PagePattern> found = page_load(graph_, id);
    return found.has_value() && is_same(*found, pattern_);
  }

  // kv_idx % page_size.
  bool is_offset(NodeId id) const {
    if (pattern_.page_size == 1 && is_int(graph_, id, 0)) return true;
    return graph_[id].op == Op::kMod && is_leaf(graph_, graph_.arg(id, 0), Op::kKvIdx) &&
           is_int(graph_, graph_.arg(id, 1), pattern_.page_size);
  }

  // The key: page * page_size + offset.
  bool is_logical(NodeId id) const {
    if (pattern_.page_size == 1 && is_first_key(id)) return true;
    if (graph_[id].op != Op::kAdd) return false;
    const NodeId a = graph_.arg(id, 0), b = graph_.arg(id, 1);
    return (is_first_key(a) && is_offset(b)) || (is_first_key(b) && is_offset(a));
  }

  // The result of comparing a page or a key with a number, if it is the same for all live (or for
  // all dead) pages.
  std::optional<bool> answer(NodeId id, bool is_live) const {
    const Node& node = graph_[id];
    if (node.op < Op::kLt || node.op > Op::kNe) return std::nullopt;
    Op op = node.op;
    NodeId x = graph_.arg(id, 0), c = graph_.arg(id, 1);
    if (graph_[x].op == Op::kIntConst) {
      std::swap(x, c);
      op = mirrored(op);
    }
    const std::optional<std::int64_t> than = int_of(graph_, c);
    if (!than.has_value() || !(is_page(x) || is_logical(x))) return std::nullopt;
    return is_live ? of_live(op, *than) : of_dead(op, *than);
  }

 private:
  // page * page_size.
  bool is_first_key(NodeId id) const {
    const std::int64_t size = pattern_.page_size;
    if (size == 1 && is_page(id)) return true;
    if (graph_[id].op != Op::kMul) return false;
    const NodeId a = graph_.arg(id, 0), b = graph_.arg(id, 1);
    return (is_page(a) && is_int(graph_, b, size)) || (is_page(b) && is_int(graph_, a, size));
  }

  // The result if x >= 0.
  static std::optional<bool> of_live(Op op, std::int64_t than) {
    if (op == Op::kGe && than <= 0) return true;
    if (op == Op::kGt && than < 0) return true;
    if (op == Op::kLt && than <= 0) return false;
    if (op == Op::kLe && than < 0) return false;
    if (op == Op::kEq && than < 0) return false;
    if (op == Op::kNe && than < 0) return true;
    return std::nullopt;
  }

  // The result if x <= -1.
  static std::optional<bool> of_dead(Op op, std::int64_t than) {
    if (op == Op::kGe && than >= 0) return false;
    if (op == Op::kGt && than >= -1) return false;
    if (op == Op::kLt && than >= 0) return true;
    if (op == Op::kLe && than >= -1) return true;
    if (op == Op::kEq && than >= 0) return false;
    if (op == Op::kNe && than >= 0) return true;
    return std::nullopt;
  }

  const Graph& graph_;
  const PagePattern& pattern_;
};

// Copies a formula. `replace(id, to)` returns the node of `to` that stands for `id`, or kNoNode to
// copy it. Nodes that only replaced nodes depend on are not visited.
template <class Replace>
std::pair<Graph, std::vector<NodeId>> rewrite(const Formula& formula, const Replace& replace) {
  const Graph& from = formula.graph();
  Graph to;
  std::vector<NodeId> map(from.size(), kNoNode);
  std::vector<bool> needed(from.size());
  needed[formula.root()] = true;
  for (NodeId id = formula.root(); id >= 0; --id) {
    const std::size_t at = id;
    if (!needed[at]) continue;
    map[at] = replace(id, to);
    if (map[at] != kNoNode) continue;
    for (const NodeId arg : from.args(id)) needed[arg] = true;
  }
  std::vector<NodeId> args;
  for (NodeId id = 0; id <= formula.root(); ++id) {
    const std::size_t at = id;
    if (!needed[at] || map[at] != kNoNode) continue;
    args.clear();
    for (const NodeId arg : from.args(id)) args.push_back(map[arg]);
    map[at] = from[id].op <= Op::kKvIdx ? make_leaf(to, from[id].op)
                                        : make_like(to, from, from[id], args);
  }
  return {std::move(to), std::move(map)};
}

}  // namespace

bool is_same_buffer(const Buffer& a, const Buffer& b) {
  if (a.is_same(b)) return true;
  const ConstTensorView &x = a.view(), &y = b.view();
  return a.has_data() && b.has_data() && x.data() == y.data() && x.dtype() == y.dtype() &&
         x.shape() == y.shape() && x.strides() == y.strides();
}

bool reads_page_table(const Formula& formula) {
  const std::span<const Buffer> buffers = formula.graph().buffers();
  return std::ranges::any_of(buffers, [](const Buffer& buffer) { return buffer.is_page_table(); });
}

Formula mark_page_table(const Formula& formula) {
  const bool has_table = std::ranges::any_of(
      formula.graph().buffers(), [](const Buffer& buffer) { return is_integers(buffer, 2); });
  if (!has_table) return formula;
  const std::optional<PagePattern> pattern = find_page_pattern(formula);
  if (!pattern.has_value()) return formula;
  std::vector<Buffer> buffers = formula.buffers();
  for (Buffer& buffer : buffers)
    if (is_same_buffer(buffer, pattern->table)) buffer = buffer.as_page_table();
  return formula.with_buffers(std::move(buffers));
}

std::optional<PagePattern> find_page_pattern(const Formula& formula) {
  const Graph& graph = formula.graph();
  const auto size = static_cast<NodeId>(graph.size());
  if (size > kMostNodes) return std::nullopt;
  std::optional<PagePattern> asked;  // a rule that shows a whole sequence contains no key
  for (NodeId id = 0; id < size; ++id) {
    const std::optional<PagePattern> pattern = page_load(graph, id);
    if (!pattern.has_value()) continue;
    const Roles roles(graph, *pattern);
    for (NodeId user = id; user < size; ++user) {
      if (roles.is_logical(user)) return pattern;
      if (!asked.has_value() && roles.answer(user, true).has_value()) asked = pattern;
    }
  }
  return asked;
}

std::optional<Formula> to_logical(const Formula& formula, const PagePattern& pattern) {
  const Graph& from = formula.graph();
  const Roles roles(from, pattern);
  bool uses_slot = false;
  auto [graph, map] = rewrite(formula, [&](NodeId id, Graph& to) {
    if (const std::optional<bool> known = roles.answer(id, true)) return make_bool(to, *known);
    if (roles.is_logical(id)) return make_leaf(to, Op::kKvIdx);
    const auto of_key = [&](Op op) {
      return make_binary(to, op, make_leaf(to, Op::kKvIdx), make_int(to, pattern.page_size));
    };
    if (roles.is_page(id)) return of_key(Op::kFloorDiv);
    if (from[id].op != Op::kIntConst && roles.is_offset(id)) return of_key(Op::kMod);
    uses_slot = uses_slot || from[id].op == Op::kKvIdx;
    return kNoNode;
  });
  if (uses_slot) return std::nullopt;
  return Formula(graph, map[formula.root()]);
}

namespace {

// The lengths in `kv_idx < lengths[b]`, if the node is such a comparison.
std::optional<Buffer> bound_of(const Graph& graph, NodeId id) {
  const Op op = graph[id].op;
  if (op != Op::kLt && op != Op::kGt) return std::nullopt;
  const NodeId key = graph.arg(id, op == Op::kLt ? 0 : 1);
  const NodeId length = graph.arg(id, op == Op::kLt ? 1 : 0);
  const Node& load = graph[length];
  if (graph[key].op != Op::kKvIdx || load.op != Op::kLoad || load.arg_count != 1)
    return std::nullopt;
  const Buffer& lengths = graph.buffer(load.buffers[0]);
  if (!is_leaf(graph, graph.arg(length, 0), Op::kBatch) || !is_integers(lengths, 1) ||
      !lengths.has_data())
    return std::nullopt;
  return lengths;
}

}  // namespace

std::optional<Buffer> find_key_bound(const Formula& logical, Precision precision) {
  const Graph& graph = logical.graph();
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id) {
    const std::optional<Buffer> lengths = bound_of(graph, id);
    if (!lengths.has_value()) continue;
    const auto [beyond, map] = rewrite(
        logical, [&](NodeId at, Graph& to) { return at == id ? make_bool(to, false) : kNoNode; });
    if (is_hidden(Formula(beyond, map[logical.root()]), precision)) return lengths;
  }
  return std::nullopt;
}

Formula within_key_bound(const Formula& logical, const Buffer& lengths) {
  const auto [graph, map] = rewrite(logical, [&](NodeId id, Graph& to) {
    const std::optional<Buffer> bound = bound_of(logical.graph(), id);
    return bound.has_value() && is_same_buffer(*bound, lengths) ? make_bool(to, true) : kNoNode;
  });
  return Formula(graph, map[logical.root()]);
}

bool is_hidden(const Formula& formula, Precision precision) {
  const Formula simple = simplify(formula, precision);
  const Node& root = simple.graph()[simple.root()];
  if (root.op == Op::kBoolConst) return root.bits == 0;
  return root.op == Op::kFloatConst &&
         root.float_value() == -std::numeric_limits<double>::infinity();
}

Formula for_dead_pages(const Formula& formula, const PagePattern& pattern) {
  const Roles roles(formula.graph(), pattern);
  const auto [graph, map] = rewrite(formula, [&](NodeId id, Graph& to) {
    const std::optional<bool> known = roles.answer(id, false);
    return known.has_value() ? make_bool(to, *known) : kNoNode;
  });
  return Formula(graph, map[formula.root()]);
}

}  // namespace quire::formula
