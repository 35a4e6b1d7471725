// BlockMask::adjust: the same blocks for other lengths; rows and columns that are no longer needed
// are removed. (torch's _adjust counts entries below the new number of blocks in the first columns
// of its lists. That is right only for a causal prefix: otherwise entries may point outside the
// mask or be lost. Here the remaining blocks are exactly those that were there.) Mask layer.
#include <algorithm>

#include "mask/block_mask_data.h"
#include "mask/size_limits.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using namespace mask;

namespace {

constexpr const char* kAdjust = "BlockMask::adjust";

struct Cut {
  std::int64_t rows, columns;  // the first of them stay
  bool grows;                  // blocks that were cut off by an edge have more elements now
};

BlockRows cut_rows(const BlockRows& rows, const Cut& cut) {
  BlockRowsBuilder builder(rows.batches(), rows.heads(), cut.rows);
  if (cut.rows == 0) return builder.finish();
  RunList runs;
  for (std::int64_t b = 0; b < rows.batches(); ++b) {
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      const std::int64_t plane = rows.plane(b, h);
      for (std::int64_t r = 0; r < cut.rows; ++r) {
        runs.clear();
        for (const BlockRun& run : rows.row(plane, r)) {
          // New elements of a block have not been proved: the mask mod decides.
          const bool unproved = cut.grows && run.kind == BlockKind::kFullToEdge;
          append_run(runs, run.begin, std::min(run.end(), cut.columns),
                     unproved ? BlockKind::kPartial : run.kind);
        }
        builder.add_row(runs);
      }
    }
  }
  return builder.finish();
}

Tensor first_rows(const Tensor& from, std::int64_t axis, std::int64_t rows) {
  return contiguous(from.view().slice(axis, 0, rows));
}

// Only if no columns are cut.
GivenLists first_rows(const GivenLists& given, std::int64_t rows) {
  GivenLists result{first_rows(given.kv_num_blocks, -1, rows),
                    first_rows(given.kv_indices, -2, rows),
                    {},
                    {},
                    given.are_padded};
  if (given.full_kv_num_blocks.has_value()) {
    result.full_kv_num_blocks = first_rows(*given.full_kv_num_blocks, -1, rows);
    result.full_kv_indices = first_rows(*given.full_kv_indices, -2, rows);
  }
  return result;
}

}  // namespace

BlockMask BlockMask::adjust(std::int64_t q_len, std::int64_t kv_len) const {
  const FloatEnv float_env;
  check_size(kAdjust, "q_len", q_len, 0, kMostPosition);
  check_size(kAdjust, "kv_len", kv_len, 0, kMostPosition);
  const Cut cut{ceil_div(q_len, data_->block_size.q), ceil_div(kv_len, data_->block_size.kv),
                q_len > data_->q_len || kv_len > data_->kv_len};
  if (cut.rows > data_->q_blocks || cut.columns > data_->kv_blocks) {
    fail(ErrorKind::value, kAdjust,
         "q_len {} and kv_len {} need {} x {} blocks; the mask has {} x {}", q_len, kv_len,
         cut.rows, cut.columns, data_->q_blocks, data_->kv_blocks);
  }
  auto data = std::make_shared<BlockMaskData>(*data_);
  data->q_len = q_len;
  data->kv_len = kv_len;
  data->shape[data->shape.rank() - 2] = q_len;
  data->shape[data->shape.rank() - 1] = kv_len;
  data->q_blocks = cut.rows;
  data->kv_blocks = cut.columns;
  const bool same_columns = cut.columns == data_->kv_blocks;
  const bool same_blocks = same_columns && cut.rows == data_->q_blocks;
  // New elements may be visible to the rule and yet lie in an empty block.
  data->chosen_by_data = data_->chosen_by_data || cut.grows;
  if (!same_blocks || cut.grows)
    data->rows = std::make_shared<const BlockRows>(cut_rows(*data_->rows, cut));
  if (!same_columns)
    data->given.reset();
  else if (data_->given.has_value() && !same_blocks)
    data->given = first_rows(*data_->given, cut.rows);
  return BlockMask(std::move(data));
}

}  // namespace quire
