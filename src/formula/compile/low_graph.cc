// Hash-consing and classification of low nodes. Formula layer.
#include "formula/compile/low_graph.h"

namespace quire::formula {

using kernels::TileClass;
using kernels::TileOp;
using kernels::TileType;

namespace {

std::size_t hash_of(const LowNode& node) {
  std::size_t hash =
      static_cast<std::size_t>(node.op) << 8 | static_cast<std::size_t>(node.value_class);
  const auto mix = [&](std::int64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(node.a), mix(node.b), mix(node.c), mix(node.imm), mix(node.lane_step), mix(node.row_step);
  mix(static_cast<std::int64_t>(node.type) << 32 | node.buffer << 16 | node.other_buffer);
  return hash;
}

}  // namespace

TileClass join(TileClass a, TileClass b) {
  if (a == TileClass::kUniform || a == b) return b;
  return b == TileClass::kUniform ? a : TileClass::kElement;
}

TileClass affine_class(std::int64_t lane_step, std::int64_t row_step) {
  if (lane_step == 0) return row_step == 0 ? TileClass::kUniform : TileClass::kRow;
  if (row_step == 0) return TileClass::kLane;
  const bool opposite =
      static_cast<std::uint64_t>(lane_step) + static_cast<std::uint64_t>(row_step) == 0;
  return opposite ? TileClass::kDiagonal : TileClass::kElement;
}

// Where the node's id is, or belongs.
LowId& LowGraph::slot_of(const LowNode& node) {
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = hash_of(node) & mask;
  while (table_[slot] != kNoLow && nodes_[table_[slot]] != node) slot = (slot + 1) & mask;
  return table_[slot];
}

void LowGraph::grow() {
  table_.assign(table_.empty() ? 32 : table_.size() * 2, kNoLow);
  nodes_.reserve(table_.size() / 2);
  for (LowId id = 0; id < size(); ++id) slot_of(nodes_[id]) = id;
}

LowId LowGraph::add(const LowNode& node) {
  if (2 * (nodes_.size() + 1) > table_.size()) grow();
  LowId& slot = slot_of(node);
  if (slot == kNoLow) {
    slot = size();
    nodes_.push_back(node);
  }
  return slot;
}

LowId LowGraph::add_op(TileOp op, TileType type, LowId a, LowId b, LowId c) {
  TileClass value_class = all_elements ? TileClass::kElement : TileClass::kUniform;
  for (const LowId arg : {a, b, c})
    if (arg != kNoLow) value_class = join(value_class, (*this)[arg].value_class);
  return add({.op = op, .type = type, .value_class = value_class, .a = a, .b = b, .c = c});
}

LowId LowGraph::int_const(std::int64_t value, TileType type) {
  return add({.op = type == TileType::kInt32 ? TileOp::kConstI : TileOp::kConstL,
              .type = type,
              .imm = value});
}

LowId LowGraph::as_type(LowId id, TileType type) {
  const LowNode node = (*this)[id];
  if (node.type == type) return id;
  if (node.op == TileOp::kConstI || node.op == TileOp::kConstL) {
    LowNode constant = node;
    constant.op = type == TileType::kInt32 ? TileOp::kConstI : TileOp::kConstL;
    constant.type = type;
    return add(constant);
  }
  return add_op(type == TileType::kInt32 ? TileOp::kLongToInt : TileOp::kIntToLong, type, id);
}

void LowGraph::add_check(const LowCheck& check) {
  if (check_of_.try_emplace(check.node, static_cast<int>(checks_.size())).second)
    checks_.push_back(check);
}

int LowGraph::check_of(LowId id) const {
  const auto at = check_of_.find(id);
  return at == check_of_.end() ? -1 : at->second;
}

}  // namespace quire::formula
