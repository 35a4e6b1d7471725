// Rewrites a formula to a smaller one that is exactly equal: evaluated in the given precision,
// every element keeps its bits (-0, inf, NaN up to its payload, wrapping integers). So floats are
// not reassociated and x + 0.0 stays. Faults are the exception: a value that is removed (x * 0 in
// integers, the unused branch of where(true, a, b)) takes its out-of-range index or division by
// zero with it; what remains faults as before. Formula layer.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "formula/graph.h"
#include "quire/formula.h"

namespace quire::formula {

/// Larger graphs are left as they are: rewriting leaves dead nodes behind, and a graph is limited
/// to kMaxNodes.
inline constexpr std::size_t kMaxSimplified = kMaxNodes / 4;

/// Idempotent; the number of operations (nodes that are neither arguments nor constants) never
/// grows. Float constants are kept as written and rounded to `precision` only where they are
/// folded. The rules are in simplify_int.cc, simplify_float.cc, simplify_bool.cc and
/// simplify_choice.cc.
Formula simplify(const Formula& formula, Precision precision);

/// The same for several values of one graph: copies them into `to` and returns their ids there.
std::vector<NodeId> simplify_into(const Graph& from, std::span<const NodeId> roots,
                                  Precision precision, Graph& to);

}  // namespace quire::formula
