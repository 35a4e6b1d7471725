// Reverse mode: propagates cotangents from the value to the score and to buffer reads. A
// structurally zero cotangent is omitted rather than stored as 0.0, because 0.0 * inf is NaN.
// Formula layer.
#include "formula/gradient/differentiate.h"

#include <algorithm>
#include <array>

#include "formula/build.h"
#include "formula/simplify/simplify.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

class Differentiator {
 public:
  Differentiator(Graph& graph, NodeId root, GradientBuffers buffers)
      : graph_(graph), root_(root), buffers_(buffers) {}

  void run() {
    find_active();
    // Nodes added from here on have larger ids: none is an argument of a node of the formula.
    cotangents_.assign(root_ + 1, kNoNode);
    if (!active_[root_]) return;
    cotangents_.back() = make_float(graph_, 1);
    for (NodeId id = root_; id >= 0; --id)
      if (cotangent(id) != kNoNode) pull_back_node(id);
  }

  /// d(root)/d(node), or kNoNode if it is zero.
  NodeId cotangent(NodeId id) const { return cotangents_[id]; }

  /// Whether side `side` of a kLoad, kSum or kDot gets a derivative.
  bool is_wanted(const Node& node, std::size_t side) const {
    if (node.op < Op::kLoad || node.type != ValueType::kFloat || node.buffers[side] < 0)
      return false;
    const Buffer& buffer = graph_.buffer(node.buffers[side]);
    return buffers_ == GradientBuffers::kMarked ? buffer.wants_gradient()
                                                : is_floating(buffer.dtype());
  }

 private:
  // Marks the nodes through which the root varies smoothly with the score or a wanted element.
  void find_active() {
    active_.assign(root_ + 1, 0);
    for (NodeId id = 0; id <= root_; ++id) {
      const Node& node = graph_[id];
      bool active = node.op == Op::kScore || is_wanted(node, 0) || is_wanted(node, 1);
      for (std::size_t i = 0; node.op < Op::kLoad && i < node.arg_count; ++i)
        active = active || flows_to(id, i);
      active_[id] = active;
    }
  }

  bool flows_to(NodeId id, std::size_t arg) const {
    return active_[graph_.arg(id, arg)] && is_differentiable(graph_, id, arg);
  }

  void pull_back_node(NodeId id) {
    const Node node = graph_[id];
    if (is_read(node.op)) return;
    std::array<bool, 3> wanted = {};
    for (std::size_t i = 0; i < node.arg_count; ++i) wanted[i] = flows_to(id, i);
    const std::array<NodeId, 3> parts = pull_back(graph_, id, cotangent(id), wanted);
    for (std::size_t i = 0; i < node.arg_count; ++i) {
      if (parts[i] == kNoNode) continue;
      NodeId& sum = cotangents_[graph_.arg(id, i)];
      sum = sum == kNoNode ? parts[i] : make_binary(graph_, Op::kAdd, sum, parts[i]);
    }
  }

  Graph& graph_;
  NodeId root_;
  GradientBuffers buffers_;
  std::vector<char> active_;        // by id, up to the root
  std::vector<NodeId> cotangents_;  // likewise
};

bool is_zero(const Graph& graph, NodeId id) {
  return graph[id].op == Op::kFloatConst && graph[id].float_value() == 0;
}

}  // namespace

Derivatives differentiate(const Formula& score_mod, Precision precision, GradientBuffers buffers) {
  // Simplified first, so that equal reads are one site.
  const Formula simple = simplify(score_mod, precision);
  Graph graph = simple.graph();
  Differentiator differentiator(graph, simple.root(), buffers);
  differentiator.run();

  std::vector<NodeId> roots = {simple.root(), make_float(graph, 0)};
  std::vector<Derivatives::Site> sites;
  for (NodeId id = 0; id <= simple.root(); ++id) {
    const Node& node = graph[id];
    const NodeId cotangent = differentiator.cotangent(id);
    if (cotangent == kNoNode) continue;
    if (node.op == Op::kScore) roots[1] = cotangent;
    for (const int side : {0, 1}) {
      if (!differentiator.is_wanted(node, side)) continue;
      sites.push_back({.node = id, .side = side, .buffer = -1, .factor = cotangent});
      roots.insert(roots.end(), {id, cotangent});
    }
  }

  Derivatives result;
  const std::vector<NodeId> ids = simplify_into(graph, roots, precision, result.graph);
  result.value = ids[0];
  result.d_score = ids[1];
  for (std::size_t i = 0; i < sites.size(); ++i) {
    Derivatives::Site site = sites[i];
    site.node = ids[2 + 2 * i];
    site.factor = ids[3 + 2 * i];
    site.buffer = result.graph[site.node].buffers[site.side];
    if (!is_zero(result.graph, site.factor)) result.sites.push_back(site);
  }
  return result;
}

}  // namespace quire::formula
