// transpose: a picture seen from the keys. Its time and memory follow the runs on both sides, not
// the area. Mask layer.
#pragma once
#include <cstdint>

#include "mask/block_rows.h"

namespace quire::mask {

/// Runs of query blocks for each of the `columns` key blocks. Throws Error if they do not fit into
/// memory.
BlockRows transpose(const BlockRows& rows, std::int64_t columns);

}  // namespace quire::mask
