// How one node is printed: pieces of text with gaps for the arguments. Hides casts that parsing
// inserts again and writes parentheses only where parsing needs them; print.cc assembles the
// pieces. Formula layer.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formula/graph.h"
#include "formula/op_table.h"

namespace quire::formula {

/// Text, or an argument.
struct Piece {
  std::string text = {};
  NodeId value = kNoNode;  // the argument; text is empty then
  int levels = 0;          // how much deeper it is nested: brackets, a prefix or ** before it
};

class NodeText {
 public:
  explicit NodeText(const Graph& graph);

  /// Writes `id` as `name` from now on.
  void bind(NodeId id, std::string name);
  bool is_bound(NodeId id) const { return bound_[id] >= 0; }

  /// The pieces of the value itself, even if it is bound.
  void append_pieces(NodeId id, std::vector<Piece>& pieces) const;
  /// The name of a bound value.
  const std::string& name(NodeId id) const;
  /// The name a buffer is written with.
  const std::string& buffer_name(std::int32_t buffer) const;
  bool is_buffer_name(const std::string& name) const;

 private:
  bool is_cast(NodeId id, ValueType to) const;
  bool is_plain_power(NodeId id) const;
  Precedence precedence(NodeId id) const;
  std::vector<NodeId> shown_args(NodeId id) const;
  void append_argument(NodeId id, Precedence weakest, int levels, std::vector<Piece>& pieces) const;
  void append_list(std::span<const NodeId> values, std::vector<Piece>& pieces) const;
  void append_slice(std::int32_t buffer, std::span<const NodeId> indices,
                    std::vector<Piece>& pieces) const;

  const Graph& graph_;
  std::vector<std::string> buffer_names_;  // by index in the graph
  std::vector<std::string> names_;         // of bound values
  std::vector<std::int32_t> bound_;        // by node: index into names_, or -1
};

/// As an operand that parses to a constant of the same type and bits.
std::string constant_text(const Node& node);

}  // namespace quire::formula
