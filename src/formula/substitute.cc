// The value is copied first, and the argument's place in the map of copies points to it. Formula
// layer.
#include "formula/substitute.h"

#include <cassert>
#include <vector>

#include "formula/graph.h"

namespace quire::formula {

Formula substitute(const Formula& formula, Op argument, const Formula& value) {
  const Graph& from = formula.graph();
  Graph to;
  std::vector<NodeId> of_value, map(from.size(), kNoNode);
  const NodeId root = copy_reachable(value.graph(), value.root(), to, of_value);
  for (std::size_t id = 0; id < from.size(); ++id) {
    const Node& node = from[static_cast<NodeId>(id)];
    if (node.op != argument) continue;
    assert(node.type == value.type());
    map[id] = root;
  }
  const NodeId result = copy_reachable(from, formula.root(), to, map);
  return Formula(to, result);
}

}  // namespace quire::formula
