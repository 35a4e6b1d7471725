// Prints a tile program, one line per instruction. Formula layer.
#pragma once
#include <string>

#include "kernels/tile/tile_program.h"

namespace quire::formula {

/// Locations are named by what they vary with: u (uniform), l (lane), r (row), d (diagonal), t
/// (element); suffix: the type.
///   uniform    u1.f32 = strided slopes at u0
///   diagonal   d0.i32 = iota u2, 1 a row, -1 a lane
///   element    score  = add score, d2            store, max
std::string disassemble(const kernels::TileProgram& program);

}  // namespace quire::formula
