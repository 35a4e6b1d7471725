// BlockMask::rows: an exact slice of a mask's queries. Nothing is evaluated where all old rows of
// blocks that a new row covers agree on empty or full; other blocks are evaluated. Mask layer.
#include <algorithm>
#include <memory>

#include "mask/block_mask_data.h"
#include "mask/block_prover.h"
#include "mask/mask_grid.h"
#include "mask/merge_runs.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using namespace mask;

namespace {

void check_rows(const BlockMaskData& data, std::int64_t q_begin, std::int64_t q_end) {
  if (q_begin >= 0 && q_begin <= q_end && q_end <= data.q_len) return;
  fail(ErrorKind::index, "BlockMask::rows",
       "rows must satisfy 0 <= q_begin <= q_end <= {}; got {} and {}", data.q_len, q_begin, q_end);
}

// The slice begins and ends at block boundaries: rows of blocks are copied.
std::shared_ptr<const BlockRows> whole_rows(const BlockRows& from, std::int64_t first,
                                            std::int64_t count) {
  BlockRowsBuilder builder(from.batches(), from.heads(), count);
  for (std::int64_t b = 0; b < from.batches(); ++b)
    for (std::int64_t h = 0; h < from.heads(); ++h)
      for (std::int64_t row = 0; row < count; ++row)
        builder.add_row(from.row(from.plane(b, h), first + row));
  return std::make_shared<const BlockRows>(builder.finish());
}

// A new row of blocks covers at most two old ones: both have the same height.
std::shared_ptr<const BlockRows> cut_rows(const BlockMaskData& from, const BlockGrid& grid,
                                          const MaskMod& mod, std::int64_t q_begin) {
  const BlockProver prover(mod, from.batch, from.heads, grid, Proof::kNone);
  BlockProver::Worker worker(prover);
  const BlockRows& old = *from.rows;
  BlockRowsBuilder builder(old.batches(), old.heads(), grid.q_blocks());
  RunList runs;
  for (std::int64_t b = 0; b < old.batches(); ++b) {
    for (std::int64_t h = 0; h < old.heads(); ++h) {
      for (std::int64_t row = 0; row < grid.q_blocks(); ++row) {
        const std::int64_t first = q_begin + row * grid.size.q;
        const std::int64_t last = std::min(first + grid.size.q, q_begin + grid.q_len) - 1;
        runs.clear();
        merge_runs(old.row(old.plane(b, h), first / grid.size.q),
                   old.row(old.plane(b, h), last / grid.size.q), grid.kv_blocks(),
                   [&](std::int64_t begin, std::int64_t end, BlockKind upper, BlockKind lower) {
                     if (upper == BlockKind::kEmpty && lower == BlockKind::kEmpty) return;
                     if (!is_full(upper) || !is_full(lower))
                       return prover.prove(b, h, {row, row + 1, begin, end}, {&runs, 1}, worker);
                     append_run(runs, begin, end - 1, grid.full_kind(row, begin));
                     append_run(runs, end - 1, end, grid.full_kind(row, end - 1));
                   });
        builder.add_row(runs);
      }
    }
  }
  prover.throw_first_fault({&worker, 1});
  return std::make_shared<const BlockRows>(builder.finish());
}

}  // namespace

BlockMask BlockMask::rows(std::int64_t q_begin, std::int64_t q_end) const {
  const FloatEnv float_env;
  const BlockMaskData& from = *data_;
  check_rows(from, q_begin, q_end);
  const BlockGrid old = grid_of(from, "BlockMask::rows");
  const BlockGrid grid{old.q_begin + q_begin, q_end - q_begin, old.kv_len, old.size};
  auto data = std::make_shared<BlockMaskData>(from);
  data->shape[data->shape.rank() - 2] = grid.q_len;
  data->q_len = grid.q_len;
  data->q_begin = grid.q_begin;
  data->q_blocks = grid.q_blocks();
  data->given.reset();
  const bool on_borders =
      q_begin % grid.size.q == 0 && (q_end % grid.size.q == 0 || q_end == from.q_len);
  if (from.chosen_by_data && on_borders) {
    mask_mod();  // throws for a mask whose rule was removed
    data->rows = whole_rows(*from.rows, q_begin / grid.size.q, grid.q_blocks());
  } else {
    data->mask_mod = whole_mask_mod();
    data->chosen_by_data = false;
    data->rows = cut_rows(from, grid, *data->mask_mod, q_begin);
  }
  return BlockMask(std::move(data));
}

}  // namespace quire
