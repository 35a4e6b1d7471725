// The graph between formulas and tile programs: nodes are opcodes with a type, an integer width and
// a class. Hash-consed; arguments have smaller ids. Knows about lanes and rows of tiles, not about
// scratch addresses. Formula layer.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/tile/tile_program.h"
#include "quire/buffer.h"

namespace quire::formula {

using LowId = std::int32_t;
inline constexpr LowId kNoLow = -1;

struct LowNode {
  kernels::TileOp op = kernels::TileOp::kCopyF;
  kernels::TileType type = kernels::TileType::kFloat;
  kernels::TileClass value_class = kernels::TileClass::kUniform;
  LowId a = kNoLow, b = kNoLow, c = kNoLow;
  std::int64_t imm = 0;
  std::int64_t lane_step = 0, row_step = 0;  // iota, strided
  std::int16_t buffer = -1, other_buffer = -1;
  bool is_score = false;

  friend bool operator==(const LowNode&, const LowNode&) = default;
};

/// An integer as uniform + lane * lane_step + row * row_step, modulo 2^64.
struct LowAffine {
  bool known = false;
  std::int64_t lane_step = 0, row_step = 0;
  LowId uniform = kNoLow;  // int64
};

struct LowCheck {
  kernels::TileCheck::Kind kind;
  LowId node;   // the kIndex or kDivisor node
  LowId value;  // the index or divisor
  std::string buffer_name;
  int axis = 0;
  std::int64_t size = 0;
};

class LowGraph {
 public:
  LowId add(const LowNode& node);
  /// An operation of the class that its arguments join to.
  LowId add_op(kernels::TileOp op, kernels::TileType type, LowId a, LowId b = kNoLow,
               LowId c = kNoLow);
  LowId int_const(std::int64_t value, kernels::TileType type);
  LowId as_type(LowId id, kernels::TileType type);  // between kInt32 and kInt64
  /// Once per node: if several buffers are read at the same index, errors name the first.
  void add_check(const LowCheck& check);

  const LowNode& operator[](LowId id) const { return nodes_[id]; }
  LowId size() const { return static_cast<LowId>(nodes_.size()); }

  /// Makes every node per element: for programs that do not hoist.
  bool all_elements = false;
  std::vector<kernels::TileBuffer> buffers;
  std::vector<std::shared_ptr<const void>> keep_alive;

  const std::vector<LowCheck>& checks() const { return checks_; }
  /// The check that the node reports to, or -1.
  int check_of(LowId id) const;

 private:
  LowId& slot_of(const LowNode& node);
  void grow();

  std::vector<LowNode> nodes_;
  std::vector<LowId> table_;  // open addressing, 2^n slots, kNoLow if empty
  std::vector<LowCheck> checks_;
  std::unordered_map<LowId, int> check_of_;
};

kernels::TileClass join(kernels::TileClass a, kernels::TileClass b);

/// The class of uniform + lane * lane_step + row * row_step.
kernels::TileClass affine_class(std::int64_t lane_step, std::int64_t row_step);

}  // namespace quire::formula
