// Whether proving new rows pays for reading the buffers of the rule whole. Mask layer.
#pragma once
#include <cstdint>

#include "mask/block_prover.h"

namespace quire::mask {

/// Reading an element into a min/max tree costs about 1 ns, evaluating the rule at a new element
/// 0.2 ns. One new query over 100,000 keys and their document ids: shapes. A chunk of 512 queries
/// over 100,000 keys: contents.
Proof proof_for_append(std::int64_t new_area, std::int64_t buffer_elements);

}  // namespace quire::mask
