// Switches generated from the table of operations. Formula layer.
#include "formula/compile/tile_opcodes.h"

#include <cassert>

namespace quire::formula {

using kernels::TileOp;

TileOp shifted(TileOp first, int offset) {
  return static_cast<TileOp>(static_cast<int>(first) + offset);
}

TileOp int_op(Op op, bool narrow) {
  switch (op) {
#define QUIRE_INT_OP(name, ...) \
  case Op::k##name:             \
    return narrow ? TileOp::k##name##I : TileOp::k##name##L;
#define QUIRE_NUMBER_OP(name, ...) \
  case Op::k##name:                \
    return narrow ? TileOp::k##name##I : TileOp::k##name##L;
#include "quire/op_table.inc"
    default:
      assert(false && "no opcode on integers");
      return TileOp::kNegL;
  }
}

TileOp float_op(Op op) {
  switch (op) {
#define QUIRE_FLOAT_OP(name, ...) \
  case Op::k##name:               \
    return TileOp::k##name##F;
#define QUIRE_NUMBER_OP(name, ...) \
  case Op::k##name:                \
    return TileOp::k##name##F;
#define QUIRE_FLOAT_FUNCTION(name, ...) \
  case Op::k##name:                     \
    return TileOp::k##name##F;
#include "quire/op_table.inc"
    default:
      assert(false && "no opcode on floats");
      return TileOp::kCopyF;
  }
}

}  // namespace quire::formula
