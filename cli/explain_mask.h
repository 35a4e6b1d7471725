// How the block mask of a formula is proved, in words and numbers: `quire explain --mask`. Command
// line layer.
#pragma once
#include <cstdint>
#include <string>

#include "quire/explain.h"
#include "quire/formula.h"

namespace quire::cli {

/// Builds the block mask; or says which buffers have no contents, without which nothing can be
/// built. Throws Error if the formula is no mask.
std::string explain_mask(const Formula& formula, const ExplainOptions& sizes, std::int64_t block);

}  // namespace quire::cli
