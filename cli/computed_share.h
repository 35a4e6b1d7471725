// How much of a mask is computed: pairs, not whole blocks, so that a mask smaller than a block is
// no special case. (BlockMask::sparsity counts whole blocks, as torch does, and may be negative.)
// Command line layer.
#pragma once
#include "quire/block_mask.h"

namespace quire::cli {

/// Of all pairs (query, key) of all batch entries and heads, the share that lies in blocks which
/// are not empty; 0 if there are no pairs. Walks over the stored runs of every plane once.
double computed_share(const BlockMask& mask);

}  // namespace quire::cli
