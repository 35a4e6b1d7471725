// Emission: turns low nodes into the instructions of a tile program with addresses in scratch
// memory. Formula layer.
#pragma once
#include <vector>

#include "formula/compile/compile.h"
#include "formula/compile/low_graph.h"
#include "kernels/tile/tile_program.h"

namespace quire::formula {

/// What a program computes; kNoLow for what it does not compute.
struct LowRoots {
  LowId score = kNoLow;
  LowId mask = kNoLow;
  std::vector<LowId> outputs = {};  // values kept for the whole tile: TileProgram::outputs
};

/// Throws Error for a program too large to run.
kernels::TileProgram emit(const LowGraph& low, const LowRoots& roots,
                          const CompileOptions& options);

}  // namespace quire::formula
