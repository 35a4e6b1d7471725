// Prints formulas in the text form: the exact inverse of parse.h, with as few parentheses and casts
// as parsing back allows. Formula layer.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "formula/graph.h"

namespace quire::formula {

/// Where writing everything out would be longer than this, or nested deeper, values get names.
inline constexpr std::size_t kMaxExpanded = 4096;
inline constexpr int kMaxLevels = 200;

/// The value `root` as one expression; or, where that would exceed the limits above, with bindings
/// for values used more than once and for those nested deeply: `t0 = ...; t1 = ...; value`. The
/// text's size is then linear in the graph's.
std::string print(const Graph& graph, NodeId root);

/// The buffers of `graph` under the names they are printed with: their own, except where two share
/// one or the language does not allow it (then name_1, name_2, ...). Parsing a printed formula with
/// these gives the same formula, up to the names that changed.
std::vector<std::pair<std::string, Buffer>> printed_names(const Graph& graph);

}  // namespace quire::formula
