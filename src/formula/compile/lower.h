// Lowering: turns formulas into low nodes. Decides the integer width of every value (32 bits where
// `bound` proves it), its class, which integers are affine in lane and row, and which buffer reads
// need a check. Formula layer.
#pragma once
#include <span>
#include <vector>

#include "formula/bound/bound.h"
#include "formula/compile/compile.h"
#include "formula/compile/low_graph.h"
#include "formula/graph.h"

namespace quire::formula {

/// Where a buffer is read, for its gradient.
struct LowRead {
  LowId index = kNoLow;         // row-major over the indexed axes; the others form one row
  LowAffine affine = {};        // the index as an affine form, if it is one
  LowId other_offset = kNoLow;  // kDot: offset in the other buffer, in elements
  std::int16_t other_buffer = -1;
};

class Lowering {
 public:
  Lowering(LowGraph& low, const CompileOptions& options) : low_(low), options_(options) {}

  /// The low node of the formula's value. Several formulas may be lowered into one LowGraph, which
  /// shares equal values.
  LowId lower(const Formula& formula);

  /// For a formula that is a kLoad, kSum or kDot of a non-empty buffer; `side` as in
  /// Derivatives::Site.
  LowRead lower_read(const Formula& read, int side);

 private:
  LowId lower_node(NodeId id);
  LowId per_element(LowId id);
  LowId lower_leaf(const Node& node);
  LowId lower_constant(const Node& node);
  LowId lower_cast(NodeId id);
  LowId lower_unary(NodeId id);
  LowId lower_binary(NodeId id);
  LowId lower_softcap(LowId a, LowId b);
  LowId lower_int_binary(NodeId id);
  LowId lower_compare(NodeId id);
  LowId lower_where(NodeId id);
  LowId lower_clamp(NodeId id);

  // lower_load.cc
  LowId lower_load(NodeId id);
  LowId lower_chain(NodeId id);  // kSum, kDot
  LowId lower_index(NodeId index, const Buffer& buffer, int axis);
  LowId gather_offset(std::span<const NodeId> indices, const Buffer& buffer, const Shape& strides);
  LowAffine affine_offset(std::span<const NodeId> indices, const Buffer& buffer,
                          const Shape& strides);
  LowId chain_offset(std::span<const NodeId> indices, const Buffer& buffer);
  std::int16_t add_buffer(const Buffer& buffer, std::size_t leading);
  kernels::TileType load_type(const Buffer& buffer) const;

  // lower_affine.cc
  LowAffine find_affine(NodeId id);
  LowAffine affine_leaf(kernels::Coord coord);
  LowAffine affine_product(const LowAffine& form, std::int64_t factor);
  LowAffine affine_sum(const LowAffine& a, const LowAffine& b, bool subtract);
  LowId iota(const LowAffine& form, kernels::TileType type);

  LowId coordinate(kernels::Coord coord);
  LowId float_const(double value);
  LowId mask_const(bool value);
  kernels::TileType int_type(NodeId id) const;
  bool is_narrow(LowId id) const { return low_[id].type == kernels::TileType::kInt32; }
  LowId narrowed(NodeId id, LowId wide);  // converts an int64 to the type of `id`

  LowId value(NodeId id) const { return values_[id]; }
  const LowAffine& affine(NodeId id) const { return affine_[id]; }
  const Interval& bound(NodeId id) const { return bounds_[id]; }

  LowGraph& low_;
  const CompileOptions& options_;
  const Graph* graph_ = nullptr;
  std::vector<Interval> bounds_;
  std::vector<LowId> values_;
  std::vector<LowAffine> affine_;
};

}  // namespace quire::formula
