// Cuts runs of blocks at the rectangle's borders. Mask layer.
#include "mask/rectangle.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "mask/block_mask_data.h"
#include "mask/block_rows.h"
#include "mask/mask_grid.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::mask {
namespace {

constexpr const char* kRectangle = "BlockMask";

void check(const BlockMaskData& data, const MaskRectangle& of) {
  const bool is_inside = of.q_begin >= 0 && of.q_begin <= of.q_end && of.q_end <= data.q_len &&
                         of.kv_begin >= 0 && of.kv_begin <= of.kv_end && of.kv_end <= data.kv_len;
  if (is_inside) return;
  fail(ErrorKind::index, kRectangle,
       "a rectangle must lie inside of {} queries and {} keys; got queries {} to {} and keys {} to "
       "{}",
       data.q_len, data.kv_len, of.q_begin, of.q_end, of.kv_begin, of.kv_end);
}

bool is_on_borders(std::int64_t begin, std::int64_t end, std::int64_t length, std::int64_t block) {
  return begin % block == 0 && (end % block == 0 || end == length);
}

// The rule for heads and keys that are counted from these.
template <class Mod>
Mod shifted(const Mod& mod, std::int64_t h_begin, std::int64_t kv_begin) {
  if (h_begin == 0 && kv_begin == 0) return mod;
  const detail::ModArguments of = detail::mod_arguments();
  const auto h = h_begin == 0 ? of.h : of.h + h_begin;
  const auto kv_idx = kv_begin == 0 ? of.kv_idx : of.kv_idx + kv_begin;
  return Mod(Formula(detail::apply(mod.formula(), {of.score, of.b, h, of.q_idx, kv_idx})));
}

}  // namespace

MaskMod shift_keys(const MaskMod& mod, std::int64_t kv_begin) { return shifted(mod, 0, kv_begin); }

ScoreMod shift_keys(const ScoreMod& mod, std::int64_t kv_begin) {
  return shifted(mod, 0, kv_begin);
}

MaskMod shift_heads(const MaskMod& mod, std::int64_t h_begin) { return shifted(mod, h_begin, 0); }

ScoreMod shift_heads(const ScoreMod& mod, std::int64_t h_begin) { return shifted(mod, h_begin, 0); }

BlockMask cut_rectangle(const BlockMask& mask, const MaskRectangle& of, Executor* executor) {
  const BlockMaskData& from = mask.data();
  check(from, of);
  const BlockGrid old = grid_of(from, kRectangle);
  const BlockGrid grid{old.q_begin + of.q_begin, of.q_end - of.q_begin, of.kv_end - of.kv_begin,
                       old.size};
  const bool on_borders = is_on_borders(of.q_begin, of.q_end, from.q_len, old.size.q) &&
                          is_on_borders(of.kv_begin, of.kv_end, from.kv_len, old.size.kv);
  if (!on_borders) {
    return create_block_mask(shift_keys(mask.whole_mask_mod(executor), of.kv_begin), from.batch,
                             from.heads, grid.q_len, grid.kv_len,
                             {.block_size = old.size,
                              .separate_full_blocks = from.separate_full_blocks,
                              .q_begin = grid.q_begin,
                              .executor = executor});
  }
  const std::int64_t first_row = of.q_begin / old.size.q, first = of.kv_begin / old.size.kv;
  const std::int64_t end = first + grid.kv_blocks();
  const BlockRows& rows = *from.rows;
  BlockRowsBuilder builder(rows.batches(), rows.heads(), grid.q_blocks());
  RunList runs;
  for (std::int64_t b = 0; b < rows.batches(); ++b) {
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      for (std::int64_t row = 0; row < grid.q_blocks(); ++row) {
        runs.clear();
        for (const BlockRun& run : rows.row(rows.plane(b, h), first_row + row)) {
          const std::int64_t begin = std::max<std::int64_t>(run.begin, first);
          const std::int64_t stop = std::min(run.end(), end);
          if (begin < stop) append_run(runs, begin - first, stop - first, run.kind);
        }
        builder.add_row(runs);
      }
    }
  }
  std::shared_ptr<BlockMaskData> data = make_data(grid, from.batch, from.heads);
  data->separate_full_blocks = from.separate_full_blocks;
  data->chosen_by_data = from.chosen_by_data;
  data->mask_mod = shift_keys(mask.mask_mod(), of.kv_begin);
  data->rows = std::make_shared<const BlockRows>(builder.finish());
  return BlockMask(std::move(data));
}

BlockMask cut_heads(const BlockMask& mask, std::int64_t h_begin, std::int64_t h_end) {
  const BlockMask cut =
      mask.heads() == 1 ? mask : mask.index(BlockSlice(), BlockSlice{h_begin, h_end});
  const auto data = std::make_shared<BlockMaskData>(cut.data());
  data->mask_mod = shift_heads(mask.mask_mod(), h_begin);
  data->chosen_by_data = mask.data().chosen_by_data;
  return BlockMask(data);
}

}  // namespace quire::mask
