// Parses the text form of formulas: expressions as in Python over the arguments of a mod, functions
// and named buffers. The grammar is in parse.cc. Types are decided by build.h; nothing is
// simplified. Formula layer.
#pragma once
#include <cstddef>
#include <string_view>

#include "quire/formula.h"

namespace quire::formula {

/// Longest accepted text, in bytes. Large enough for what print() makes of kMaxNodes values (up to
/// some 5 MB).
inline constexpr std::size_t kMaxTextSize = std::size_t{1} << 23;

/// Deepest nesting of parentheses, calls, indices, prefixes and right-hand sides of **.
inline constexpr int kMaxDepth = 1000;

/// Throws Error, whose text shows the line with a caret under the position, for text that is not a
/// formula and for buffers whose names are not identifiers, are reserved, or are used twice.
Formula parse(std::string_view text, const NamedBuffers& buffers);

}  // namespace quire::formula
