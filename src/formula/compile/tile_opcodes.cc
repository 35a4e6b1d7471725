// One table for integers and one for floats. Formula layer.
#include "formula/compile/tile_opcodes.h"

namespace quire::formula {

using kernels::TileOp;

TileOp shifted(TileOp first, int offset) {
  return static_cast<TileOp>(static_cast<int>(first) + offset);
}

TileOp int_op(Op op, bool narrow) {
  const auto int32_op = [op] {
    switch (op) {
      case Op::kNeg:
        return TileOp::kNegI;
      case Op::kAbs:
        return TileOp::kAbsI;
      case Op::kSign:
        return TileOp::kSignI;
      case Op::kBitNot:
        return TileOp::kNotI;
      case Op::kAdd:
        return TileOp::kAddI;
      case Op::kSub:
        return TileOp::kSubI;
      case Op::kMul:
        return TileOp::kMulI;
      case Op::kFloorDiv:
        return TileOp::kFloorDivI;
      case Op::kMod:
        return TileOp::kModI;
      case Op::kMin:
        return TileOp::kMinI;
      case Op::kMax:
        return TileOp::kMaxI;
      case Op::kBitAnd:
        return TileOp::kAndI;
      case Op::kBitOr:
        return TileOp::kOrI;
      default:
        return TileOp::kXorI;
    }
  }();
  return narrow
             ? int32_op
             : shifted(TileOp::kNegL, static_cast<int>(int32_op) - static_cast<int>(TileOp::kNegI));
}

TileOp float_op(Op op) {
  switch (op) {
    case Op::kNeg:
      return TileOp::kNegF;
    case Op::kAbs:
      return TileOp::kAbsF;
    case Op::kSign:
      return TileOp::kSignF;
    case Op::kFloor:
      return TileOp::kFloorF;
    case Op::kCeil:
      return TileOp::kCeilF;
    case Op::kRound:
      return TileOp::kRoundF;
    case Op::kTrunc:
      return TileOp::kTruncF;
    case Op::kAdd:
      return TileOp::kAddF;
    case Op::kSub:
      return TileOp::kSubF;
    case Op::kMul:
      return TileOp::kMulF;
    case Op::kDiv:
      return TileOp::kDivF;
    case Op::kFloorDiv:
      return TileOp::kFloorDivF;
    case Op::kMod:
      return TileOp::kModF;
    case Op::kPow:
      return TileOp::kPowF;
    case Op::kMin:
      return TileOp::kMinF;
    case Op::kMax:
      return TileOp::kMaxF;
    default:
      return shifted(TileOp::kExpF, static_cast<int>(op) - static_cast<int>(Op::kExp));
  }
}
static_assert(static_cast<int>(Op::kSoftplus) - static_cast<int>(Op::kExp) ==
              static_cast<int>(TileOp::kSoftplusF) - static_cast<int>(TileOp::kExpF));

}  // namespace quire::formula
