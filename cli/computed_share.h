// How much of a mask is computed, in pairs rather than whole blocks, so that a mask smaller than a
// block is no special case. (BlockMask::sparsity counts whole blocks, as torch does, and may be
// negative.) Command line layer.
#pragma once
#include "quire/block_mask.h"

namespace quire::cli {

/// The share of all pairs (query, key), over all batch entries and heads, that lie in non-empty
/// blocks; 0 if there are no pairs. Walks over the stored runs of every plane once.
double computed_share(const BlockMask& mask);

}  // namespace quire::cli
