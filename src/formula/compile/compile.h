// Compiles formulas to a tile program: decides how often each value is computed, with which
// integer width and at which address. Runs nothing; kernels/ has the SIMD for the opcodes. Formula
// layer.
#pragma once
#include <string>

#include "formula/bound/bound.h"
#include "kernels/tile/tile_program.h"
#include "quire/formula.h"

namespace quire::formula {

struct CompileOptions {
  Precision precision = Precision::kF32;
  /// Every tile lies within these ranges; indices and integer widths are proved over them.
  Rectangle extents;
  /// How b, h, q_idx and kv_idx vary over a tile (indexed by kernels::Coord). Prefill: q along
  /// lanes, kv along rows.
  kernels::Vary vary[kernels::kCoordCount] = {kernels::Vary::kConstant, kernels::Vary::kConstant,
                                              kernels::Vary::kLaneRange, kernels::Vary::kRowRange};
  int max_rows = 256;
  int groups = 1;            // of 64 lanes
  bool max_per_row = false;  // the running maximum is kept per row (decode), not per lane
  /// Accept buffers without data: the program can be printed, not run.
  bool allow_declared = false;
  /// For tests: compute every value per element, in 64 bits, node by node. The bits must not
  /// change.
  bool node_by_node = false;
};

/// Either formula may be null: without a score mod the score passes through; with `mask_only` there
/// is no score. The formulas should already be simplified.
struct CompileRequest {
  const Formula* score_mod = nullptr;  // float
  const Formula* mask_mod = nullptr;   // bool
  bool mask_only = false;
};

/// Throws Error for a buffer without data.
kernels::TileProgram compile(const CompileRequest& request, const CompileOptions& options);

/// The text for a fault of the program: "[formula] index 12 is outside buffer 'slopes' of size 8
/// (axis 0) at b=0, ...".
std::string fault_text(const kernels::TileProgram& program, int check, std::int64_t value,
                       const std::int64_t (&at)[kernels::kCoordCount]);

}  // namespace quire::formula
