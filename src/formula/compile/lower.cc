// Lowers everything except buffer reads and affine integers. Formula layer.
#include "formula/compile/lower.h"

#include <algorithm>
#include <bit>

#include "formula/compile/tile_opcodes.h"
#include "formula/type_rules.h"

namespace quire::formula {

using kernels::Coord;
using kernels::TileClass;
using kernels::TileOp;
using kernels::TileType;
using kernels::Vary;

LowId Lowering::lower(const Formula& formula) {
  graph_ = &formula.graph();
  const Bounder bounder(formula, options_.precision, {.read_buffers = false});
  bounds_.assign(graph_->size(), Interval());
  Rectangle extents =
      options_.extents;  // an empty rectangle has no tiles: what is proved does not matter
  for (IndexRange* range : {&extents.b, &extents.h, &extents.q, &extents.kv})
    range->last = std::max(range->first, range->last);
  bounder.bound_all(extents, bounds_);
  values_.assign(graph_->size(), kNoLow);
  affine_.assign(graph_->size(), LowAffine());
  for (NodeId id = 0; id < static_cast<NodeId>(graph_->size()); ++id) {
    const std::size_t at = id;
    if ((*graph_)[id].type == ValueType::kInt && !options_.node_by_node)
      affine_[at] = find_affine(id);
    LowAffine& form = affine_[at];
    const bool varies = form.known && (form.lane_step != 0 || form.row_step != 0);
    if (varies) {
      values_[at] = iota(form, int_type(id));
    } else if (form.known && form.uniform != kNoLow) {
      values_[at] = narrowed(id, form.uniform);
    } else {
      values_[at] = lower_node(id);
      if (form.known) form.uniform = low_.as_type(values_[at], TileType::kInt64);
    }
    if (options_.node_by_node) values_[at] = per_element(values_[at]);
  }
  return value(formula.root());
}

// For programs that do not hoist: broadcasts a less varied value to the elements unchanged.
LowId Lowering::per_element(LowId id) {
  if (low_[id].value_class == TileClass::kElement) return id;
  switch (low_[id].type) {
    case TileType::kFloat:
      return low_.add_op(TileOp::kAddF, TileType::kFloat, float_const(-0.0), id);
    case TileType::kMask:
      return low_.add_op(TileOp::kOrM, TileType::kMask, mask_const(false), id);
    default:
      break;
  }
  const LowId zero = low_.add(
      {.op = TileOp::kConstL, .type = TileType::kInt64, .value_class = TileClass::kElement});
  return low_.add_op(TileOp::kAddL, TileType::kInt64, zero, low_.as_type(id, TileType::kInt64));
}

LowId Lowering::lower_node(NodeId id) {
  const Node& node = (*graph_)[id];
  switch (node.op) {
    case Op::kScore:
      return low_.add(
          {.type = TileType::kFloat, .value_class = TileClass::kElement, .is_score = true});
    case Op::kBatch:
    case Op::kHead:
    case Op::kQIdx:
    case Op::kKvIdx:
      return narrowed(id, lower_leaf(node));
    case Op::kIntConst:
    case Op::kFloatConst:
    case Op::kBoolConst:
      return lower_constant(node);
    case Op::kToInt:
    case Op::kToFloat:
    case Op::kToBool:
      return lower_cast(id);
    case Op::kWhere:
      return lower_where(id);
    case Op::kClamp:
      return lower_clamp(id);
    case Op::kLoad:
      return lower_load(id);
    case Op::kSum:
    case Op::kDot:
      return lower_chain(id);
    default:
      break;
  }
  if (is_compare(node.op)) return lower_compare(id);
  return node.arg_count == 1 ? lower_unary(id) : lower_binary(id);
}

// A coordinate that is not affine: constant over the tile, or from a list.
LowId Lowering::lower_leaf(const Node& node) {
  return coordinate(static_cast<Coord>(static_cast<int>(node.op) - static_cast<int>(Op::kBatch)));
}

LowId Lowering::coordinate(Coord coord) {
  const Vary vary = options_.vary[static_cast<int>(coord)];
  const LowId start = low_.add(
      {.op = TileOp::kStart, .type = TileType::kInt64, .imm = static_cast<std::int64_t>(coord)});
  const bool listed = vary == Vary::kLaneList || vary == Vary::kRowList;
  const LowId list =
      !listed
          ? kNoLow
          : low_.add({.op = TileOp::kList,
                      .type = TileType::kInt64,
                      .value_class = vary == Vary::kLaneList ? TileClass::kLane : TileClass::kRow,
                      .imm = static_cast<std::int64_t>(coord)});
  if (!options_.node_by_node) return listed ? list : start;
  const LowId zero = low_.int_const(0, TileType::kInt64);
  const LowId element = low_.add({.op = TileOp::kIotaL,
                                  .type = TileType::kInt64,
                                  .value_class = TileClass::kElement,
                                  .a = listed ? zero : start,
                                  .lane_step = vary == Vary::kLaneRange,
                                  .row_step = vary == Vary::kRowRange});
  return listed ? low_.add_op(TileOp::kAddL, TileType::kInt64, element, list) : element;
}

LowId Lowering::float_const(double value) {
  const std::int64_t bits = options_.precision == Precision::kF64
                                ? std::bit_cast<std::int64_t>(value)
                                : std::bit_cast<std::int32_t>(static_cast<float>(value));
  return low_.add({.op = TileOp::kConstF,
                   .type = TileType::kFloat,
                   .value_class = options_.node_by_node ? TileClass::kElement : TileClass::kUniform,
                   .imm = bits});
}

LowId Lowering::mask_const(bool value) {
  return low_.add({.op = TileOp::kConstM,
                   .type = TileType::kMask,
                   .value_class = options_.node_by_node ? TileClass::kElement : TileClass::kUniform,
                   .imm = value});
}

LowId Lowering::lower_constant(const Node& node) {
  if (node.op == Op::kFloatConst) return float_const(node.float_value());
  if (node.op == Op::kBoolConst) return mask_const(node.bits != 0);
  if (options_.node_by_node) {
    return low_.add({.op = TileOp::kConstL,
                     .type = TileType::kInt64,
                     .value_class = TileClass::kElement,
                     .imm = node.bits});
  }
  return low_.int_const(node.bits, fits_int32(Interval::ints(node.bits, node.bits))
                                       ? TileType::kInt32
                                       : TileType::kInt64);
}

TileType Lowering::int_type(NodeId id) const {
  return !options_.node_by_node && fits_int32(bound(id)) ? TileType::kInt32 : TileType::kInt64;
}

LowId Lowering::narrowed(NodeId id, LowId wide) { return low_.as_type(wide, int_type(id)); }

LowId Lowering::lower_cast(NodeId id) {
  const Node& node = (*graph_)[id];
  const NodeId from = graph_->arg(id, 0);
  const ValueType type = (*graph_)[from].type;
  const LowId x = value(from);
  switch (node.op) {
    case Op::kToFloat:
      if (type == ValueType::kBool)
        return low_.add_op(TileOp::kSelectF, TileType::kFloat, float_const(1), float_const(0), x);
      return low_.add_op(is_narrow(x) ? TileOp::kIntToF : TileOp::kLongToF, TileType::kFloat, x);
    case Op::kToInt:
      if (type == ValueType::kBool)
        return low_.as_type(low_.add_op(TileOp::kMaskToInt, TileType::kInt32, x), int_type(id));
      return narrowed(id, low_.add_op(TileOp::kFToLong, TileType::kInt64, x));
    default:
      break;
  }
  if (type == ValueType::kFloat)
    return low_.add_op(TileOp::kNeF, TileType::kMask, x, float_const(0));
  return low_.add_op(is_narrow(x) ? TileOp::kNeI : TileOp::kNeL, TileType::kMask, x,
                     low_.int_const(0, low_[x].type));
}

LowId Lowering::lower_unary(NodeId id) {
  const Node& node = (*graph_)[id];
  const LowId x = value(graph_->arg(id, 0));
  if (node.type == ValueType::kBool) return low_.add_op(TileOp::kNotM, TileType::kMask, x);
  if (node.type == ValueType::kFloat) return low_.add_op(float_op(node.op), TileType::kFloat, x);
  const bool narrow = is_narrow(x) && int_type(id) == TileType::kInt32;
  if (narrow) return low_.add_op(int_op(node.op, true), TileType::kInt32, x);
  return narrowed(
      id, low_.add_op(int_op(node.op, false), TileType::kInt64, low_.as_type(x, TileType::kInt64)));
}

LowId Lowering::lower_binary(NodeId id) {
  const Node& node = (*graph_)[id];
  const LowId a = value(graph_->arg(id, 0)), b = value(graph_->arg(id, 1));
  if (node.type == ValueType::kFloat) {
    const LowId softcap = node.op == Op::kMul ? lower_softcap(a, b) : kNoLow;
    return softcap != kNoLow ? softcap : low_.add_op(float_op(node.op), TileType::kFloat, a, b);
  }
  if (node.type == ValueType::kInt) return lower_int_binary(id);
  const TileOp op = node.op == Op::kAnd  ? TileOp::kAndM
                    : node.op == Op::kOr ? TileOp::kOrM
                                         : TileOp::kXorM;
  return low_.add_op(op, TileType::kMask, a, b);
}

// cap * tanh(x / cap), for any two uniform factors: one pass over the elements instead of three.
LowId Lowering::lower_softcap(LowId a, LowId b) {
  if (options_.node_by_node || options_.precision == Precision::kF64) return kNoLow;
  if (low_[a].op == TileOp::kTanhF) std::swap(a, b);
  const LowNode& tanh = low_[b];
  if (low_[a].value_class != TileClass::kUniform || tanh.op != TileOp::kTanhF || tanh.is_score)
    return kNoLow;
  const LowNode& ratio = low_[tanh.a];
  if (ratio.op != TileOp::kDivF || low_[ratio.a].value_class != TileClass::kElement ||
      low_[ratio.b].value_class != TileClass::kUniform)
    return kNoLow;
  return low_.add_op(TileOp::kSoftcapF, TileType::kFloat, ratio.a, ratio.b, a);
}

LowId Lowering::lower_int_binary(NodeId id) {
  const Node& node = (*graph_)[id];
  const NodeId divisor = graph_->arg(id, 1);
  LowId a = value(graph_->arg(id, 0)), b = value(divisor);
  if ((node.op == Op::kFloorDiv || node.op == Op::kMod) && bound(divisor).contains_int(0)) {
    const LowNode check{.op = is_narrow(b) ? TileOp::kDivisorI : TileOp::kDivisorL,
                        .type = low_[b].type,
                        .value_class = low_[b].value_class,
                        .a = b};
    low_.add_check({kernels::TileCheck::Kind::kDivisor, low_.add(check), b, "", 0, 0});
  }
  const bool wide_only = node.op == Op::kShl || node.op == Op::kShr || node.op == Op::kPow;
  if (!wide_only && is_narrow(a) && is_narrow(b) && int_type(id) == TileType::kInt32)
    return low_.add_op(int_op(node.op, true), TileType::kInt32, a, b);
  const TileOp op = node.op == Op::kShl   ? TileOp::kShlL
                    : node.op == Op::kShr ? TileOp::kShrL
                    : node.op == Op::kPow ? TileOp::kPowL
                                          : int_op(node.op, false);
  a = low_.as_type(a, TileType::kInt64);
  b = low_.as_type(b, TileType::kInt64);
  return narrowed(id, low_.add_op(op, TileType::kInt64, a, b));
}

LowId Lowering::lower_compare(NodeId id) {
  const Node& node = (*graph_)[id];
  NodeId left = graph_->arg(id, 0), right = graph_->arg(id, 1);
  const bool swap = node.op == Op::kGt || node.op == Op::kGe;  // a > b is b < a, for NaN too
  if (swap) std::swap(left, right);
  const int which = node.op == Op::kLt || node.op == Op::kGt   ? 0
                    : node.op == Op::kLe || node.op == Op::kGe ? 1
                    : node.op == Op::kEq                       ? 2
                                                               : 3;
  LowId a = value(left), b = value(right);
  if (low_[a].type == TileType::kFloat)
    return low_.add_op(shifted(TileOp::kLtF, which), TileType::kMask, a, b);
  // q >= kv and the like: the difference varies less than the two sides. Exact, as neither side is
  // near overflow.
  if (affine(left).known && affine(right).known &&
      join(low_[a].value_class, low_[b].value_class) == TileClass::kElement) {
    constexpr std::int64_t kFar = std::int64_t{1} << 61;
    const LowAffine form = affine_sum(affine(left), affine(right), true);
    const auto near = [&](NodeId side) {
      return bound(side).int_lo > -kFar && bound(side).int_hi < kFar;
    };
    if (near(left) && near(right) &&
        affine_class(form.lane_step, form.row_step) != TileClass::kElement) {
      const std::int64_t lo = bound(left).int_lo - bound(right).int_hi,
                         hi = bound(left).int_hi - bound(right).int_lo;
      const TileType type =
          fits_int32(Interval::ints(lo, hi)) ? TileType::kInt32 : TileType::kInt64;
      const TileOp first = type == TileType::kInt32 ? TileOp::kLtI : TileOp::kLtL;
      return low_.add_op(shifted(first, which), TileType::kMask, iota(form, type),
                         low_.int_const(0, type));
    }
  }
  const bool narrow = is_narrow(a) && is_narrow(b);
  const TileType type = narrow ? TileType::kInt32 : TileType::kInt64;
  a = low_.as_type(a, type);
  b = low_.as_type(b, type);
  return low_.add_op(shifted(narrow ? TileOp::kLtI : TileOp::kLtL, which), TileType::kMask, a, b);
}

LowId Lowering::lower_where(NodeId id) {
  const Node& node = (*graph_)[id];
  const LowId c = value(graph_->arg(id, 0));
  LowId a = value(graph_->arg(id, 1)), b = value(graph_->arg(id, 2));
  if (node.type == ValueType::kFloat)
    return low_.add_op(TileOp::kSelectF, TileType::kFloat, a, b, c);
  if (node.type == ValueType::kBool) {
    const LowId yes = low_.add_op(TileOp::kAndM, TileType::kMask, c, a);
    const LowId no = low_.add_op(TileOp::kAndM, TileType::kMask,
                                 low_.add_op(TileOp::kNotM, TileType::kMask, c), b);
    return low_.add_op(TileOp::kOrM, TileType::kMask, yes, no);
  }
  const TileType type = is_narrow(a) && is_narrow(b) ? TileType::kInt32 : TileType::kInt64;
  a = low_.as_type(a, type);
  b = low_.as_type(b, type);
  const LowId chosen =
      low_.add_op(type == TileType::kInt32 ? TileOp::kSelectI : TileOp::kSelectL, type, a, b, c);
  return low_.as_type(chosen, int_type(id));
}

LowId Lowering::lower_clamp(NodeId id) {
  const Node& node = (*graph_)[id];
  LowId x = value(graph_->arg(id, 0)), low = value(graph_->arg(id, 1)),
        high = value(graph_->arg(id, 2));
  if (node.type == ValueType::kFloat)
    return low_.add_op(TileOp::kMinF, TileType::kFloat,
                       low_.add_op(TileOp::kMaxF, TileType::kFloat, x, low), high);
  const bool narrow = is_narrow(x) && is_narrow(low) && is_narrow(high);
  const TileType type = narrow ? TileType::kInt32 : TileType::kInt64;
  x = low_.as_type(x, type);
  low = low_.as_type(low, type);
  high = low_.as_type(high, type);
  const LowId raised = low_.add_op(int_op(Op::kMax, narrow), type, x, low);
  return low_.as_type(low_.add_op(int_op(Op::kMin, narrow), type, raised, high), int_type(id));
}

}  // namespace quire::formula
