// fill_planes: writes a dense array with one entry per row of blocks from the runs. Equal planes
// are written once and copied; parallel. The caller decides what a row looks like. Mask layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "mask/block_rows.h"
#include "quire/executor.h"
#include "quire/function_ref.h"

namespace quire::mask {

struct PlaneArray {
  void* data = nullptr;  // [batch, heads, rows per plane, row_bytes]
  std::int64_t batch = 1, heads = 1;
  std::size_t row_bytes = 0;
};

/// Writes the runs of one row as row_bytes bytes; called on many threads at once.
using FillRow = FunctionRef<void(std::span<const BlockRun> runs, void* out)>;

/// `rows` holds 1 or array.batch batches, and heads likewise. executor: the default one if null.
void fill_planes(const BlockRows& rows, const PlaneArray& array, Executor* executor,
                 FillRow fill_row);

}  // namespace quire::mask
