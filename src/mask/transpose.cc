// Sweeps a plane from its first row to its last and touches only columns whose kind differs from
// the previous row: there a run of the column ends, and another may begin. A causal mask of 8,192 x
// 8,192 blocks touches 2 x 8,192 of them. Mask layer.
#include <algorithm>
#include <vector>

#include "mask/block_mask_data.h"
#include "mask/block_rows.h"
#include "mask/merge_runs.h"
#include "mask/run_budget.h"

namespace quire::mask {
namespace {

struct ColumnRun {
  std::uint32_t column;
  BlockRun run;
};

// The runs of all columns of a plane, column after column.
struct PlaneColumns {
  std::vector<std::uint64_t> first_run;  // [columns + 1]
  RunList runs;

  std::span<const BlockRun> column(std::size_t c) const {
    return std::span(runs).subspan(first_run[c], first_run[c + 1] - first_run[c]);
  }
};

class PlaneSweep {
 public:
  explicit PlaneSweep(std::int64_t columns) : since_(columns) {}

  /// Moves to the next row; an empty row after the last ends all runs.
  void step(std::int64_t row, std::span<const BlockRun> before, std::span<const BlockRun> after) {
    merge_runs(before, after, std::ssize(since_),
               [&](std::int64_t begin, std::int64_t end, BlockKind old_kind, BlockKind new_kind) {
                 if (old_kind != new_kind) change(row, begin, end, old_kind);
               });
  }

  std::size_t ended_runs() const { return ended_.size(); }

  // Runs of a column end in ascending order, so a stable counting sort by column is enough.
  PlaneColumns finish() {
    PlaneColumns result;
    result.first_run.resize(since_.size() + 1);
    for (const ColumnRun& ended : ended_) ++result.first_run[ended.column + 1];
    for (std::size_t c = 0; c < since_.size(); ++c) result.first_run[c + 1] += result.first_run[c];
    result.runs.resize(ended_.size());
    std::vector<std::uint64_t> next(result.first_run.begin(), result.first_run.end() - 1);
    for (const ColumnRun& ended : ended_) result.runs[next[ended.column]++] = ended.run;
    ended_.clear();
    return result;
  }

 private:
  void change(std::int64_t row, std::int64_t begin, std::int64_t end, BlockKind old_kind) {
    for (std::int64_t c = begin; c < end; ++c) {
      std::uint32_t& since = since_[c];
      if (old_kind != BlockKind::kEmpty) {
        BlockRun run;
        run.begin = since;
        run.length = static_cast<std::uint32_t>(row - since) & 0x3fffffffu;
        run.kind = old_kind;
        ended_.push_back({static_cast<std::uint32_t>(c), run});
      }
      since = static_cast<std::uint32_t>(row);
    }
  }

  std::vector<std::uint32_t> since_;  // [columns] the row since which a column has had its kind
  std::vector<ColumnRun> ended_;
};

PlaneColumns transpose_plane(const BlockRows& rows, std::int64_t plane, PlaneSweep& sweep,
                             RunBudget& budget) {
  // Bytes per run here, sorted, and in the result.
  constexpr std::int64_t kRunBytes = sizeof(ColumnRun) + 2 * sizeof(BlockRun);
  const std::int64_t count = rows.rows_per_plane();
  std::span<const BlockRun> before;
  std::size_t paid = 0;
  for (std::int64_t r = 0; r <= count; ++r) {
    if (r > 0 && r < count && rows.row_id(plane, r) == rows.row_id(plane, r - 1)) continue;
    const std::span<const BlockRun> row =
        r < count ? rows.row(plane, r) : std::span<const BlockRun>();
    sweep.step(r, before, row);
    before = row;
    budget.spend(static_cast<std::int64_t>(sweep.ended_runs() - paid) * kRunBytes);
    paid = sweep.ended_runs();
  }
  return sweep.finish();
}

}  // namespace

BlockRows transpose(const BlockRows& rows, std::int64_t columns) {
  BlockRowsBuilder builder(rows.batches(), rows.heads(), columns);
  if (columns == 0) return builder.finish();
  RunBudget budget("BlockMask::transposed", 0);
  PlaneSweep sweep(columns);
  // Each stored plane is transposed where it first appears, and kept until it last appears.
  std::vector<std::int64_t> uses(rows.planes());
  std::vector<PlaneColumns> done(uses.size());
  const auto for_each_plane = [&](auto&& visit) {
    for (std::int64_t b = 0; b < rows.batches(); ++b)
      for (std::int64_t h = 0; h < rows.heads(); ++h) visit(rows.plane(b, h));
  };
  for_each_plane([&](std::int64_t plane) { ++uses[plane]; });
  for_each_plane([&](std::int64_t plane) {
    PlaneColumns& of_plane = done[plane];
    if (of_plane.first_run.empty()) of_plane = transpose_plane(rows, plane, sweep, budget);
    for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c)
      builder.add_row(of_plane.column(c));
    if (--uses[plane] == 0) of_plane = {};
  });
  return builder.finish();
}

}  // namespace quire::mask

namespace quire {

std::shared_ptr<const mask::BlockRows> BlockMask::transposed() const {
  return std::make_shared<const mask::BlockRows>(mask::transpose(*data_->rows, data_->kv_blocks));
}

}  // namespace quire
