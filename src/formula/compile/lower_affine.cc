// Lowers affine integers to uniform + lane * lane_step + row * row_step. The uniform part is
// computed in 64 bits, once per tile; the rest is one iota instruction. Formula layer.
#include "formula/compile/lower.h"
#include "kernels/tile/wrapping.h"

namespace quire::formula {

using kernels::Coord;
using kernels::TileClass;
using kernels::TileOp;
using kernels::TileType;
using kernels::Vary;
using kernels::wrapping_add;
using kernels::wrapping_mul;

LowAffine Lowering::affine_leaf(Coord coord) {
  const Vary vary = options_.vary[static_cast<int>(coord)];
  if (vary == Vary::kLaneList || vary == Vary::kRowList) return {};
  return {true, vary == Vary::kLaneRange, vary == Vary::kRowRange, coordinate(coord)};
}

LowAffine Lowering::affine_product(const LowAffine& form, std::int64_t factor) {
  if (factor == 1) return form;
  const LowId times = low_.int_const(factor, TileType::kInt64);
  return {true, wrapping_mul(form.lane_step, factor), wrapping_mul(form.row_step, factor),
          low_.add_op(TileOp::kMulL, TileType::kInt64, form.uniform, times)};
}

LowAffine Lowering::affine_sum(const LowAffine& a, const LowAffine& b, bool subtract) {
  const std::int64_t sign = subtract ? -1 : 1;
  const TileOp op = subtract ? TileOp::kSubL : TileOp::kAddL;
  return {true, wrapping_add(a.lane_step, wrapping_mul(sign, b.lane_step)),
          wrapping_add(a.row_step, wrapping_mul(sign, b.row_step)),
          low_.add_op(op, TileType::kInt64, a.uniform, b.uniform)};
}

LowAffine Lowering::find_affine(NodeId id) {
  const Node& node = (*graph_)[id];
  const auto form_of = [&](std::size_t i) -> const LowAffine& {
    return affine(graph_->arg(id, i));
  };
  const auto constant = [&](std::size_t i) {
    return (*graph_)[graph_->arg(id, i)].op == Op::kIntConst;
  };
  const auto constant_value = [&](std::size_t i) { return (*graph_)[graph_->arg(id, i)].bits; };
  switch (node.op) {
    case Op::kBatch:
    case Op::kHead:
    case Op::kQIdx:
    case Op::kKvIdx:
      return affine_leaf(
          static_cast<Coord>(static_cast<int>(node.op) - static_cast<int>(Op::kBatch)));
    case Op::kNeg:
      if (form_of(0).known) return affine_product(form_of(0), -1);
      break;
    case Op::kAdd:
    case Op::kSub:
      if (form_of(0).known && form_of(1).known)
        return affine_sum(form_of(0), form_of(1), node.op == Op::kSub);
      break;
    case Op::kMul:
      if (form_of(0).known && constant(1)) return affine_product(form_of(0), constant_value(1));
      if (form_of(1).known && constant(0)) return affine_product(form_of(1), constant_value(0));
      break;
    default:
      break;
  }
  // A uniform value is affine, with itself as the uniform part, which lower() fills in.
  if (node.op == Op::kScore) return {};
  for (const NodeId arg : graph_->args(id))
    if (low_[value(arg)].value_class != TileClass::kUniform) return {};
  return {true, 0, 0, kNoLow};
}

LowId Lowering::iota(const LowAffine& form, TileType type) {
  return low_.add({.op = type == TileType::kInt32 ? TileOp::kIotaI : TileOp::kIotaL,
                   .type = type,
                   .value_class = affine_class(form.lane_step, form.row_step),
                   .a = form.uniform,
                   .lane_step = form.lane_step,
                   .row_step = form.row_step});
}

}  // namespace quire::formula
