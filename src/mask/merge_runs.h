// Walks two rows of blocks in parallel and visits the ranges of columns in which neither changes
// its kind, empty ones included. Mask layer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "mask/block_rows.h"

namespace quire::mask {

/// Walks along a row of runs.
class RunCursor {
 public:
  RunCursor(std::span<const BlockRun> runs, std::int64_t cols) : runs_(runs), cols_(cols) {}

  BlockKind kind_at(std::int64_t col) const {
    return !runs_.empty() && runs_.front().begin <= col ? runs_.front().kind : BlockKind::kEmpty;
  }
  /// Where the kind found at `col` ends.
  std::int64_t end_at(std::int64_t col) const {
    if (runs_.empty()) return cols_;
    return runs_.front().begin <= col ? runs_.front().end() : runs_.front().begin;
  }
  void pass(std::int64_t col) {
    while (!runs_.empty() && runs_.front().end() <= col) runs_ = runs_.subspan(1);
  }

 private:
  std::span<const BlockRun> runs_;
  std::int64_t cols_;
};

/// visit(begin, end, kind_a, kind_b) for columns 0..cols-1, in order, without gaps.
template <class Visit>
void merge_runs(std::span<const BlockRun> a, std::span<const BlockRun> b, std::int64_t cols,
                const Visit& visit) {
  RunCursor at_a(a, cols), at_b(b, cols);
  for (std::int64_t begin = 0; begin < cols;) {
    const std::int64_t end = std::min({at_a.end_at(begin), at_b.end_at(begin), cols});
    visit(begin, end, at_a.kind_at(begin), at_b.kind_at(begin));
    begin = end;
    at_a.pass(begin);
    at_b.pass(begin);
  }
}

}  // namespace quire::mask
