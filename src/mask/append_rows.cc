// BlockMask::append_rows: extends a mask as its sequence grows. Blocks that were proved and not cut
// off by the old end are kept; new rows, and new columns of old rows, are proved. Mask layer.
#include <algorithm>
#include <memory>
#include <vector>

#include "formula/graph.h"
#include "mask/block_mask_data.h"
#include "mask/block_prover.h"
#include "mask/mask_grid.h"
#include "mask/size_limits.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using namespace mask;

namespace {

constexpr const char* kAppendRows = "BlockMask::append_rows";

// Columns [0, cols) of a row.
void append_first(RunList& runs, std::span<const BlockRun> from, std::int64_t cols) {
  for (const BlockRun& run : from) append_run(runs, run.begin, std::min(run.end(), cols), run.kind);
}

std::int64_t buffer_elements(const MaskMod& mod) {
  std::int64_t elements = 0;
  for (const Buffer& buffer : mod.formula().buffers()) elements += element_count(buffer.shape());
  return elements;
}

BlockRows grown_rows(const BlockMaskData& from, const BlockGrid& old, const BlockGrid& grid) {
  const std::int64_t new_area =
      grid.q_len * grid.kv_len - old.q_len * old.kv_len;  // at most 2^63: checked by the caller
  const BlockProver prover(*from.mask_mod, from.batch, from.heads, grid,
                           proof_for_append(new_area, buffer_elements(*from.mask_mod)));
  BlockProver::Worker worker(prover);
  const std::int64_t kept_rows = old.q_len / grid.size.q, kept_cols = old.kv_len / grid.size.kv;
  const bool has_new_columns = grid.kv_len != old.kv_len;
  BlockRowsBuilder builder(from.rows->batches(), from.rows->heads(), grid.q_blocks());
  std::vector<RunList> kept(kept_rows);
  std::vector<RunList> added(grid.q_blocks() - kept_rows);
  for (std::int64_t b = 0; b < from.rows->batches(); ++b) {
    for (std::int64_t h = 0; h < from.rows->heads(); ++h) {
      const std::int64_t plane = from.rows->plane(b, h);
      for (RunList& runs : kept) runs.clear();
      for (RunList& runs : added) runs.clear();
      // Runs of the new columns first, into empty lists: old rows usually see none of them.
      if (has_new_columns)
        prover.prove(b, h, {0, kept_rows, kept_cols, grid.kv_blocks()}, kept, worker);
      prover.prove(b, h, {kept_rows, grid.q_blocks(), 0, grid.kv_blocks()}, added, worker);
      for (std::int64_t row = 0; row < kept_rows; ++row) {
        const std::span<const BlockRun> before = from.rows->row(plane, row);
        const RunList& more = kept[row];
        const bool changed =
            has_new_columns &&
            (!more.empty() || (!before.empty() && before.back().end() > kept_cols));
        if (!changed) {
          builder.add_row(before);
          continue;
        }
        RunList joined;
        append_first(joined, before, kept_cols);
        for (const BlockRun& run : more) append_run(joined, run.begin, run.end(), run.kind);
        builder.add_row(joined);
      }
      for (const RunList& runs : added) builder.add_row(runs);
    }
  }
  prover.throw_first_fault({&worker, 1});
  return builder.finish();
}

}  // namespace

Proof mask::proof_for_append(std::int64_t new_area, std::int64_t buffer_elements) {
  return new_area / 4 > buffer_elements ? Proof::kContents : Proof::kShapes;
}

void BlockMask::append_rows(std::int64_t q_rows, std::int64_t kv_columns) {
  const FloatEnv float_env;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const BlockMaskData& from = *data_;
  if (q_rows < 0 || kv_columns < 0 || from.q_len > kMost - q_rows ||
      from.kv_len > kMost - kv_columns) {
    fail(ErrorKind::value, kAppendRows,
         "rows and columns to add must not be negative nor go beyond 2^31; got {} and {}", q_rows,
         kv_columns);
  }
  if (from.chosen_by_data) {
    fail(ErrorKind::value, kAppendRows,
         "blocks chosen by data say nothing about new rows; make a new mask with from_kv_blocks");
  }
  const BlockGrid old = grid_of(from, kAppendRows);
  const BlockGrid grid{old.q_begin, old.q_len + q_rows, old.kv_len + kv_columns, old.size};
  check_size(kAppendRows, "the number of query blocks", grid.q_blocks(), 0, kMostBlocks);
  check_size(kAppendRows, "the number of key blocks", grid.kv_blocks(), 0, kMostBlocks);
  auto data = std::make_shared<BlockMaskData>(from);
  data->q_len = grid.q_len;
  data->kv_len = grid.kv_len;
  data->shape[data->shape.rank() - 2] = grid.q_len;
  data->shape[data->shape.rank() - 1] = grid.kv_len;
  data->q_blocks = grid.q_blocks();
  data->kv_blocks = grid.kv_blocks();
  data->rows = std::make_shared<const BlockRows>(grown_rows(from, old, grid));
  data_ = std::move(data);
}

}  // namespace quire
