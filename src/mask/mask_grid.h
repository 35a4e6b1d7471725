// The grid of a whole mask, for operations that must know which elements a block has. Mask layer.
#pragma once
#include "mask/block_grid.h"

namespace quire::mask {

/// Throws Error, "[where] ...", for a mask that has other rows or columns of blocks than its
/// lengths say: part of one taken by index().
BlockGrid grid_of(const BlockMaskData& data, const char* where);

}  // namespace quire::mask
