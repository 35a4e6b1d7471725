// Runs the two steps of compilation and fills in the texts of possible faults. Formula layer.
#include "formula/compile/compile.h"

#include "formula/compile/emit.h"
#include "formula/compile/low_graph.h"
#include "formula/compile/lower.h"

namespace quire::formula {

using kernels::TileClass;
using kernels::TileProgram;
using kernels::TileType;

TileProgram compile(const CompileRequest& request, const CompileOptions& options) {
  LowGraph low;
  low.all_elements = options.node_by_node;
  Lowering lowering(low, options);
  const LowId mask = request.mask_mod != nullptr ? lowering.lower(*request.mask_mod) : kNoLow;
  LowId score = kNoLow;
  if (!request.mask_only) {
    score =
        request.score_mod != nullptr
            ? lowering.lower(*request.score_mod)
            : low.add(
                  {.type = TileType::kFloat, .value_class = TileClass::kElement, .is_score = true});
  }
  return emit(low, {score, mask}, options);
}

std::string fault_text(const TileProgram& program, int check, std::int64_t value,
                       const std::int64_t (&at)[kernels::kCoordCount]) {
  const kernels::TileCheck& what = program.checks[check];
  const std::string place = " at b=" + std::to_string(at[0]) + ", h=" + std::to_string(at[1]) +
                            ", q_idx=" + std::to_string(at[2]) +
                            ", kv_idx=" + std::to_string(at[3]);
  if (what.kind == kernels::TileCheck::Kind::kDivisor)
    return "[formula] integer division by zero" + place;
  return "[formula] index " + std::to_string(value) + " is outside buffer '" + what.buffer_name +
         "' of size " + std::to_string(what.size) + " (axis " + std::to_string(what.axis) + ")" +
         place;
}

}  // namespace quire::formula
