// Hash-conses nodes, copies subgraphs, substitutes arguments. Formula layer.
#include "formula/graph.h"

#include <bit>
#include <cassert>
#include <vector>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::formula {
namespace {

std::size_t mix(std::size_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

std::size_t hash_of(const Node& node, std::span<const NodeId> args) {
  std::size_t hash = mix(static_cast<std::size_t>(node.op), static_cast<std::uint64_t>(node.bits));
  hash = mix(hash, static_cast<std::uint64_t>(node.type) << 8 | node.split);
  for (const std::int32_t buffer : node.buffers)
    hash = mix(hash, static_cast<std::uint32_t>(buffer));
  for (const NodeId arg : args) hash = mix(hash, static_cast<std::uint32_t>(arg));
  return hash ^ (hash >> 32);
}

bool same_payload(const Node& a, const Node& b) {
  return a.op == b.op && a.type == b.type && a.split == b.split && a.bits == b.bits &&
         a.buffers == b.buffers;
}

}  // namespace

double Node::float_value() const { return std::bit_cast<double>(bits); }

std::size_t Graph::slot_of(const Node& node, std::span<const NodeId> args) const {
  const std::size_t mask = table_.size() - 1;
  for (std::size_t slot = hash_of(node, args) & mask;; slot = (slot + 1) & mask) {
    const NodeId id = table_[slot];
    if (id == kNoNode) return slot;
    const auto known = this->args(id);
    if (same_payload((*this)[id], node) &&
        std::equal(known.begin(), known.end(), args.begin(), args.end()))
      return slot;
  }
}

void Graph::grow() {
  table_.assign(table_.empty() ? 64 : table_.size() * 2, kNoNode);
  nodes_.reserve(table_.size() / 2);
  args_.reserve(table_.size() / 2);
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    table_[slot_of(nodes_[i], args_of(nodes_[i]))] = static_cast<NodeId>(i);
}

NodeId Graph::find(const Node& node, std::span<const NodeId> args) const {
  return table_.empty() ? kNoNode : table_[slot_of(node, args)];
}

NodeId Graph::add(Node node, std::span<const NodeId> args) {
  if (2 * (nodes_.size() + 1) > table_.size()) grow();
  const std::size_t slot = slot_of(node, args);
  if (table_[slot] != kNoNode) return table_[slot];
  if (nodes_.size() >= kMaxNodes) {
    fail(ErrorKind::value, "formula", "a formula may have at most {} different values", kMaxNodes);
  }
  node.first_arg = static_cast<std::uint32_t>(args_.size());
  node.arg_count = static_cast<std::uint8_t>(args.size());
  args_.insert(args_.end(), args.begin(), args.end());
  nodes_.push_back(node);
  return table_[slot] = static_cast<NodeId>(nodes_.size() - 1);
}

std::int32_t Graph::add_buffer(const Buffer& buffer) {
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].is_same(buffer)) return static_cast<std::int32_t>(i);
  buffers_.push_back(buffer);
  return static_cast<std::int32_t>(buffers_.size() - 1);
}

NodeId copy_reachable(const Graph& from, NodeId root, Graph& to, std::vector<NodeId>& map) {
  map.resize(from.size(), kNoNode);
  std::vector<NodeId> stack, args;
  stack.reserve(from.size());
  args.reserve(kMaxRank);
  stack.push_back(root);
  while (!stack.empty()) {
    const NodeId id = stack.back();
    if (map[id] != kNoNode) {
      stack.pop_back();
      continue;
    }
    args.clear();
    const auto old = from.args(id);
    const std::size_t waiting = stack.size();
    for (std::size_t i = old.size(); i-- > 0;)
      if (map[old[i]] == kNoNode) stack.push_back(old[i]);
    if (stack.size() != waiting) continue;
    for (const NodeId arg : old) args.push_back(map[arg]);
    Node node = from[id];
    for (std::int32_t& buffer : node.buffers)
      if (buffer >= 0) buffer = to.add_buffer(from.buffer(buffer));
    map[id] = to.add(node, args);
    stack.pop_back();
  }
  return map[root];
}

std::vector<NodeId> reachable(const Graph& graph, NodeId root) {
  std::vector<char> used(root + 1, 0);
  used[root] = 1;
  std::vector<NodeId> ids;
  for (NodeId id = root; id >= 0; --id) {
    if (!used[id]) continue;
    ids.push_back(id);
    for (const NodeId arg : graph.args(id)) used[arg] = 1;
  }
  return {ids.rbegin(), ids.rend()};
}

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
