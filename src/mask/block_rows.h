// BlockRows: the runs of blocks for every batch, head and row of blocks. Equal rows and equal
// planes are stored once, and an axis the mask does not depend on has size 1. Knows blocks only: no
// elements, no mask mod. Immutable except for append. Also transpose(). Mask layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "quire/block_mask.h"

namespace quire::mask {

using RunList = std::vector<BlockRun>;

/// Whether all existing elements of the block are visible.
constexpr bool is_full(BlockKind kind) {
  return kind == BlockKind::kFull || kind == BlockKind::kFullToEdge;
}

/// Appends blocks [begin, end) of one kind, joining them with the last run if possible. Blocks come
/// in ascending order.
void append_run(RunList& runs, std::int64_t begin, std::int64_t end, BlockKind kind);

class BlockRows {
 public:
  /// planes: `batches` x `heads`, either 1 (the same for all) or the mask's own.
  BlockRows(std::int64_t batches, std::int64_t heads, std::int64_t rows_per_plane);

  std::int64_t batches() const { return batches_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t rows_per_plane() const { return rows_; }
  /// Number of distinct planes.
  std::int64_t planes() const;
  /// Number of distinct rows.
  std::int64_t stored_rows() const { return static_cast<std::int64_t>(first_run_.size()) - 1; }
  std::int64_t stored_runs() const { return static_cast<std::int64_t>(runs_.size()); }

  std::int64_t plane(std::int64_t b, std::int64_t h) const {
    return plane_of_[(batches_ > 1 ? b : 0) * heads_ + (heads_ > 1 ? h : 0)];
  }
  std::span<const BlockRun> row(std::int64_t plane, std::int64_t row) const {
    return stored_row(row_of_[plane * rows_ + row]);
  }
  /// Equal rows of one BlockRows have equal ids.
  std::uint32_t row_id(std::int64_t plane, std::int64_t row) const {
    return row_of_[plane * rows_ + row];
  }
  std::span<const BlockRun> stored_row(std::uint32_t id) const {
    return std::span(runs_).subspan(first_run_[id], first_run_[id + 1] - first_run_[id]);
  }

  std::size_t nbytes() const;
  /// Whether all rows of all (batch, head) of a mask of this size are equal, however they are
  /// stored.
  bool same_picture(const BlockRows& other, std::int64_t batch, std::int64_t heads) const;

 private:
  friend class BlockRowsBuilder;
  std::int64_t batches_, heads_, rows_;
  std::vector<std::uint32_t> plane_of_;   // [batches, heads]
  std::vector<std::uint32_t> row_of_;     // [planes, rows]
  std::vector<std::uint64_t> first_run_;  // [stored rows + 1]
  std::vector<BlockRun> runs_;
};

/// Makes BlockRows: all planes in the order (batch, head), all rows of a plane in order.
class BlockRowsBuilder {
 public:
  BlockRowsBuilder(std::int64_t batches, std::int64_t heads, std::int64_t rows_per_plane);

  void add_row(std::span<const BlockRun> runs);
  /// Call after the last row.
  BlockRows finish();

 private:
  std::uint32_t store_row(std::span<const BlockRun> runs);
  void end_plane();
  bool row_equals(std::uint32_t id, std::span<const BlockRun> runs) const;
  void grow_table();

  BlockRows result_;
  std::int64_t rows_in_plane_ = 0;
  std::int64_t next_plane_ = 0;
  std::vector<std::uint32_t> row_table_;  // open addressing over stored rows
  std::unordered_multimap<std::uint64_t, std::uint32_t> plane_by_hash_;
};

/// Runs of query blocks for each of the `columns` key blocks. Throws Error if they do not fit into
/// memory.
BlockRows transpose(const BlockRows& rows, std::int64_t columns);

}  // namespace quire::mask
