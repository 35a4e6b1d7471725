// Builds rows and planes; equal ones are found by hash and stored once. Mask layer.
#include "mask/block_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace quire::mask {
namespace {

constexpr std::uint32_t kNoRow = std::numeric_limits<std::uint32_t>::max();

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

std::uint64_t hash_row(std::span<const BlockRun> runs) {
  std::uint64_t hash = runs.size();
  for (const BlockRun& run : runs) hash = mix(hash, std::bit_cast<std::uint64_t>(run));
  return hash;
}

template <class T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

}  // namespace

void append_run(RunList& runs, std::int64_t begin, std::int64_t end, BlockKind kind) {
  if (kind == BlockKind::kEmpty || begin >= end) return;
  if (!runs.empty() && runs.back().end() == begin && runs.back().kind == kind) {
    runs.back().length += static_cast<std::uint32_t>(end - begin) & 0x3fffffffu;
    return;
  }
  BlockRun run;
  run.begin = static_cast<std::uint32_t>(begin);
  run.length = static_cast<std::uint32_t>(end - begin) & 0x3fffffffu;
  run.kind = kind;
  runs.push_back(run);
}

BlockRows::BlockRows(std::int64_t batches, std::int64_t heads, std::int64_t rows_per_plane)
    : batches_(batches), heads_(heads), rows_(rows_per_plane), first_run_{0} {}

std::int64_t BlockRows::planes() const {
  std::uint32_t most = 0;
  for (const std::uint32_t plane : plane_of_) most = std::max(most, plane + 1);
  return most;
}

std::size_t BlockRows::nbytes() const {
  return sizeof(*this) + bytes_of(plane_of_) + bytes_of(row_of_) + bytes_of(first_run_) +
         bytes_of(runs_);
}

bool BlockRows::same_picture(const BlockRows& other, std::int64_t batch, std::int64_t heads) const {
  if (rows_ != other.rows_) return false;
  for (std::int64_t b = 0; b < std::max(batches_, other.batches_) && b < batch; ++b) {
    for (std::int64_t h = 0; h < std::max(heads_, other.heads_) && h < heads; ++h) {
      const std::int64_t mine = plane(b, h), theirs = other.plane(b, h);
      for (std::int64_t r = 0; r < rows_; ++r)
        if (!std::ranges::equal(row(mine, r), other.row(theirs, r))) return false;
    }
  }
  return true;
}

BlockRowsBuilder::BlockRowsBuilder(std::int64_t batches, std::int64_t heads,
                                   std::int64_t rows_per_plane)
    : result_(batches, heads, rows_per_plane), row_table_(64, kNoRow) {
  result_.plane_of_.reserve(batches * heads);
  if (rows_per_plane == 0) {
    result_.plane_of_.assign(batches * heads, 0);
    next_plane_ = 1;
  }
}

void BlockRowsBuilder::add_row(std::span<const BlockRun> runs) {
  result_.row_of_.push_back(store_row(runs));
  if (++rows_in_plane_ == result_.rows_) end_plane();
}

BlockRows BlockRowsBuilder::finish() {
  result_.row_of_.shrink_to_fit();
  result_.first_run_.shrink_to_fit();
  result_.runs_.shrink_to_fit();
  return std::move(result_);
}

bool BlockRowsBuilder::row_equals(std::uint32_t id, std::span<const BlockRun> runs) const {
  return std::ranges::equal(result_.stored_row(id), runs);
}

std::uint32_t BlockRowsBuilder::store_row(std::span<const BlockRun> runs) {
  if (static_cast<std::size_t>(result_.stored_rows()) * 2 >= row_table_.size()) grow_table();
  std::size_t slot = hash_row(runs) & (row_table_.size() - 1);
  while (row_table_[slot] != kNoRow) {
    if (row_equals(row_table_[slot], runs)) return row_table_[slot];
    slot = (slot + 1) & (row_table_.size() - 1);
  }
  const auto id = static_cast<std::uint32_t>(result_.stored_rows());
  row_table_[slot] = id;
  result_.runs_.insert(result_.runs_.end(), runs.begin(), runs.end());
  result_.first_run_.push_back(result_.runs_.size());
  return id;
}

void BlockRowsBuilder::grow_table() {
  row_table_.assign(row_table_.size() * 2, kNoRow);
  for (std::uint32_t id = 0; id < static_cast<std::uint32_t>(result_.stored_rows()); ++id) {
    std::size_t slot = hash_row(result_.stored_row(id)) & (row_table_.size() - 1);
    while (row_table_[slot] != kNoRow) slot = (slot + 1) & (row_table_.size() - 1);
    row_table_[slot] = id;
  }
}

// Equal rows have equal ids, so planes are compared by row ids. A plane seen before is removed
// again from the end of row_of_.
void BlockRowsBuilder::end_plane() {
  const std::size_t rows = result_.rows_;
  const std::uint32_t* plane = result_.row_of_.data() + next_plane_ * rows;
  std::uint64_t hash = 0;
  for (std::size_t r = 0; r < rows; ++r) hash = mix(hash, plane[r]);
  rows_in_plane_ = 0;
  const auto [begin, end] = plane_by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const std::uint32_t* other = result_.row_of_.data() + it->second * rows;
    if (!std::equal(plane, plane + rows, other)) continue;
    result_.plane_of_.push_back(it->second);
    result_.row_of_.resize(next_plane_ * rows);
    return;
  }
  const auto id = static_cast<std::uint32_t>(next_plane_++);
  plane_by_hash_.emplace(hash, id);
  result_.plane_of_.push_back(id);
}

}  // namespace quire::mask
