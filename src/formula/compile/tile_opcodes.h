// The opcode of a tile program that computes an operation of a formula. Formula layer.
#pragma once
#include "kernels/tile/tile_program.h"
#include "quire/op.h"

namespace quire::formula {

/// The opcode `offset` positions after the first of its family.
kernels::TileOp shifted(kernels::TileOp first, int offset);

/// For an operation on integers, in 32 bits (`narrow`) or 64.
kernels::TileOp int_op(Op op, bool narrow);

/// For an operation on floats.
kernels::TileOp float_op(Op op);

}  // namespace quire::formula
