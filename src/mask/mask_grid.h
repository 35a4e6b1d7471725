// BlockGrid: how elements are divided into blocks and which blocks the edges cut off; conversion
// between a grid and the data of a whole mask. Mask layer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

#include "formula/bound/bound.h"
#include "mask/block_mask_data.h"
#include "runtime/ceil_div.h"

namespace quire::mask {

/// Rows and columns of blocks, ends excluded.
struct BlockRect {
  std::int64_t row_begin, row_end, col_begin, col_end;

  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t cols() const { return col_end - col_begin; }
};

struct BlockGrid {
  std::int64_t q_begin = 0, q_len = 0, kv_len = 0;
  BlockSize size = {};

  std::int64_t q_blocks() const { return ceil_div(q_len, size.q); }
  std::int64_t kv_blocks() const { return ceil_div(kv_len, size.kv); }

  /// The q_idx of rows [begin, end) of blocks, begin < end.
  formula::IndexRange q_range(std::int64_t begin, std::int64_t end) const {
    return {q_begin + begin * size.q, q_begin + std::min(end * size.q, q_len) - 1};
  }
  formula::IndexRange kv_range(std::int64_t begin, std::int64_t end) const {
    return {begin * size.kv, std::min(end * size.kv, kv_len) - 1};
  }

  bool row_is_cut(std::int64_t row) const { return (row + 1) * size.q > q_len; }
  bool col_is_cut(std::int64_t col) const { return (col + 1) * size.kv > kv_len; }
  /// The kind of a block whose existing elements are all visible.
  BlockKind full_kind(std::int64_t row, std::int64_t col) const {
    return row_is_cut(row) || col_is_cut(col) ? BlockKind::kFullToEdge : BlockKind::kFull;
  }
};

/// Throws Error, "[where] ...", for a mask whose rows or columns of blocks do not match its
/// lengths: part of one taken by index().
BlockGrid grid_of(const BlockMaskData& data, const char* where);

/// [batch, heads, q_len, kv_len] in the blocks of a grid, without rule and rows.
std::shared_ptr<BlockMaskData> make_data(const BlockGrid& grid, std::int64_t batch,
                                         std::int64_t heads);

}  // namespace quire::mask
