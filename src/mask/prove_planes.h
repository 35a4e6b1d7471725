// Proves all rows of blocks of all distinct (batch, head) planes, in parallel over bands of rows.
// The result does not depend on the executor. Mask layer.
#pragma once
#include <cstdint>

#include "mask/block_prover.h"

namespace quire::mask {

struct PlaneCounts {
  std::int64_t batches, heads;
};

struct ProveOptions {
  const char* where = "create_block_mask";  // for error texts
  std::int64_t max_bytes = 0;               // 0: what memory is available
  Executor* executor = nullptr;             // default_executor() if null
  BlockMaskReport* report = nullptr;
};

/// Throws Error for a mask that needs more than max_bytes and for faults of the formula.
BlockRows prove_planes(const BlockProver& prover, const BlockGrid& grid, PlaneCounts planes,
                       const ProveOptions& options);

/// Rows of blocks per task: about eight tasks per thread to even out, at most 256 rows (a band
/// keeps its runs separate until all are done), whole leaves. 8,192 rows, 1 plane, 2 threads: 256.
/// 16 rows, 1 plane, 2 threads: 1. 16 rows, 64 planes, 2 threads: 16.
std::int64_t band_rows(std::int64_t rows, std::int64_t planes, std::int64_t threads,
                       std::int64_t leaf_rows);

}  // namespace quire::mask
