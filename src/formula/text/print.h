// Prints formulas in the text form: the exact inverse of parse.h, with as few parentheses and casts
// as parsing back allows. Formula layer.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "formula/graph.h"

namespace quire::formula {

/// Values get names if writing everything out would be longer than this, or nested deeper.
inline constexpr std::size_t kMaxExpanded = 4096;
inline constexpr int kMaxLevels = 200;

/// The value `root` as one expression; or, if that would exceed the limits above, with bindings for
/// values used more than once and for deeply nested ones: `t0 = ...; t1 = ...; value`. The size of
/// the text is then linear in that of the graph.
std::string print(const Graph& graph, NodeId root);

/// The buffers of `graph` with the names they are printed under: their own, unless two share one or
/// it is not a valid name (then name_1, name_2, ...). Parsing a printed formula with these gives
/// the same formula, up to the changed names.
std::vector<std::pair<std::string, Buffer>> printed_names(const Graph& graph);

}  // namespace quire::formula
