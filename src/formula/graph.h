// The expression graph: typed, hash-consed nodes. An argument always has a smaller id than its
// users, so every pass is one loop over ids and none recurses. Structure only: build.h checks
// types; reference/ (f64) and the tile programs of kernels/ compute values. Formula layer.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/buffer.h"
#include "quire/formula.h"
#include "quire/op.h"

namespace quire::formula {

using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

/// Limit on the values of one formula. Far above anything written by hand; bounds memory and time
/// for generated ones.
inline constexpr std::size_t kMaxNodes = std::size_t{1} << 16;

struct Node {
  Op op = Op::kIntConst;
  ValueType type = ValueType::kInt;
  std::uint8_t split = 0;  // kDot: how many of the arguments index the first buffer
  std::uint8_t arg_count = 0;
  std::uint32_t first_arg = 0;                     // into the graph's argument list
  std::array<std::int32_t, 2> buffers = {-1, -1};  // kLoad, kSum: one; kDot: two
  std::int64_t bits = 0;  // constants: the integer, the bool, or the bits of the double

  double float_value() const;
};

class Graph {
 public:
  /// The node with this operation, arguments and payload: an existing one, or a new one.
  NodeId add(Node node, std::span<const NodeId> args);
  /// The same, only if it exists already; kNoNode otherwise.
  NodeId find(const Node& node, std::span<const NodeId> args) const;

  /// The index of a captured buffer in this graph; the same buffer (by identity) is stored once.
  std::int32_t add_buffer(const Buffer& buffer);

  /// Replaces all buffers: as many, of the same dtypes and ranks.
  void replace_buffers(std::vector<Buffer> buffers) { buffers_ = std::move(buffers); }

  std::size_t size() const { return nodes_.size(); }
  const Node& operator[](NodeId id) const { return nodes_[id]; }
  std::span<const NodeId> args(NodeId id) const { return args_of((*this)[id]); }
  NodeId arg(NodeId id, std::size_t i) const { return args(id)[i]; }
  const Buffer& buffer(std::int32_t i) const { return buffers_[i]; }
  std::span<const Buffer> buffers() const { return buffers_; }

 private:
  std::span<const NodeId> args_of(const Node& node) const {
    return {args_.data() + node.first_arg, node.arg_count};
  }
  std::size_t slot_of(const Node& node, std::span<const NodeId> args) const;
  void grow();

  std::vector<Node> nodes_;
  std::vector<NodeId> args_;
  std::vector<Buffer> buffers_;
  std::vector<NodeId> table_;  // open addressing, 2^n slots, kNoNode if empty
};

/// Copies what `root` depends on into `to` and returns its id there. Order: depth first, arguments
/// left to right, so equal formulas copied into empty graphs give equal graphs. To copy several
/// roots, keep `map` (old id to new, kNoNode if not copied) between calls.
NodeId copy_reachable(const Graph& from, NodeId root, Graph& to, std::vector<NodeId>& map);

/// Ids of all nodes `root` depends on, itself included, ascending.
std::vector<NodeId> reachable(const Graph& graph, NodeId root);

/// Replaces every use of `argument` (Op::kScore, kBatch, kHead, kQIdx or kKvIdx) by `value`, which
/// has the argument's type and may use the argument itself.
Formula substitute(const Formula& formula, Op argument, const Formula& value);

}  // namespace quire::formula
