// How the block mask of a formula is proved, in words and numbers: `quire explain --mask`. Command
// line layer.
#pragma once
#include <cstdint>
#include <string>

#include "quire/explain.h"
#include "quire/formula.h"

namespace quire::cli {

/// Builds the block mask, or says which buffers lack the contents needed to build it. Throws Error
/// if the formula is not a mask.
std::string explain_mask(const Formula& formula, const ExplainOptions& sizes, std::int64_t block);

}  // namespace quire::cli
