// From the grid of a whole mask to what a BlockMask holds and back, for operations that must know
// which elements a block has. Mask layer.
#pragma once
#include <cstdint>
#include <memory>

#include "mask/block_grid.h"

namespace quire::mask {

/// Throws Error, "[where] ...", for a mask that has other rows or columns of blocks than its
/// lengths say: part of one taken by index().
BlockGrid grid_of(const BlockMaskData& data, const char* where);

/// [batch, heads, q_len, kv_len] in the blocks of a grid, without a rule and rows.
std::shared_ptr<BlockMaskData> make_data(const BlockGrid& grid, std::int64_t batch,
                                         std::int64_t heads);

}  // namespace quire::mask
