// Comparison of faults in logical order, and proofs that a formula cannot fault. Formula layer.
#include "formula/first_fault.h"

#include <cstddef>

#include "formula/compile/compile.h"
#include "formula/compile/lower.h"
#include "quire/error.h"

namespace quire::formula {
namespace {

bool indices_inside(std::span<const NodeId> indices, const Shape& shape,
                    std::span<const Interval> bounds) {
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    if (!index_in_bounds(bounds[indices[axis]], shape[axis])) return false;
  }
  return true;
}

}  // namespace

void throw_first_fault(std::span<const kernels::TileFault> faults) {
  kernels::TileFault first;
  for (const kernels::TileFault& fault : faults)
    if (fault.before(first)) first = fault;
  if (!first.found) return;
  const kernels::TileProgram& program = *first.program;
  const bool index = program.checks[first.check].kind == kernels::TileCheck::Kind::kIndex;
  throw Error(index ? ErrorKind::index : ErrorKind::value,
              fault_text(program, first.check, first.value, first.at));
}

bool is_fault_free(const Formula& formula, std::span<const Interval> bounds) {
  const Graph& graph = formula.graph();
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const Node& node = graph[id];
    const std::span<const NodeId> args = graph.args(id);
    if (node.op == Op::kLoad || node.op == Op::kSum || node.op == Op::kDot) {
      const std::size_t split = node.op == Op::kDot ? node.split : args.size();
      if (!indices_inside(args.first(split), graph.buffer(node.buffers[0]).shape(), bounds))
        return false;
      if (node.op == Op::kDot &&
          !indices_inside(args.subspan(split), graph.buffer(node.buffers[1]).shape(), bounds))
        return false;
    }
    if ((node.op == Op::kFloorDiv || node.op == Op::kMod) && node.type == ValueType::kInt &&
        bounds[args[1]].contains_int(0))
      return false;
  }
  return true;
}

}  // namespace quire::formula
