// Grid sizes, axis ticks, and the picture of a block mask. Draw layer.
#include "draw/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "mask/block_mask_data.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"

namespace quire::drawing {
namespace {

// A cell is full or empty if all its blocks are; counted block by block, so runs can come in any
// order.
class CellCounts {
 public:
  CellCounts(std::int64_t rows, std::int64_t cols, std::int64_t blocks_per_col)
      : cols_(cols), per_col_(blocks_per_col), listed_(rows * cols), full_(listed_.size()) {}

  void add(std::int64_t row, const BlockRun& run) {
    const bool full = mask::is_full(run.kind);
    for (std::int64_t at = run.begin; at < run.end();) {
      const std::int64_t col = at / per_col_, end = std::min((col + 1) * per_col_, run.end());
      const std::size_t cell = row * cols_ + col;
      listed_[cell] += end - at;
      if (full) full_[cell] += end - at;
      at = end;
    }
  }

  CellKind kind(std::size_t cell, std::int64_t blocks) const {
    if (full_[cell] == blocks) return CellKind::kVisible;
    return listed_[cell] == 0 ? CellKind::kHidden : CellKind::kPartial;
  }

 private:
  std::int64_t cols_, per_col_;
  std::vector<std::int64_t> listed_, full_;
};

void check_blocks(const BlockMask& mask, const DrawOptions& options) {
  const auto check = [](const char* name, std::int64_t index, std::int64_t size) {
    if (index < 0 || index >= size)
      fail(ErrorKind::index, "draw", "{} {} is outside a mask of {}", name, index, size);
  };
  check("batch", options.b, mask.batch());
  check("head", options.h, mask.heads());
  if (mask.q_blocks() == 0 || mask.kv_blocks() == 0) {
    fail(ErrorKind::value, "draw", "there is nothing to draw in a mask of {}",
         to_string(mask.shape()));
  }
}

// Positions; or blocks, for a mask whose rows were selected: their positions are not known.
Axis block_axis(const char* name, std::int64_t begin, std::int64_t length, std::int64_t block,
                std::int64_t blocks, std::int64_t most) {
  const std::int64_t per_cell = ceil_div(blocks, most);
  if (blocks != ceil_div(length, block))
    return {fmt::format("block of {}", name), 0, blocks, per_cell};
  // A block may be longer than the whole axis.
  return {name, begin, length, std::min(per_cell * block, length)};
}

std::string block_caption(const BlockMask& mask, const DrawOptions& options,
                          std::int64_t blocks_per_row, std::int64_t blocks_per_col) {
  const auto [q_len, kv_len] = mask.seq_lengths();
  const BlockSize size = mask.block_size();
  std::string text = fmt::format("batch {} of {}, head {} of {}; {} queries x {} keys; ", options.b,
                                 mask.batch(), options.h, mask.heads(), q_len, kv_len);
  if (blocks_per_row > 1 || blocks_per_col > 1)
    text += fmt::format("a cell: {} x {} blocks of {} x {}", blocks_per_row, blocks_per_col, size.q,
                        size.kv);
  else
    text += size == BlockSize(1) ? "a cell: an element"
                                 : fmt::format("a cell: a block of {} x {}", size.q, size.kv);
  return text;
}

}  // namespace

bool Picture::has(CellKind kind) const {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

CellLimit fit_cells(std::int64_t q_len, std::int64_t kv_len, std::int64_t longest) {
  const auto longer = static_cast<double>(std::max({q_len, kv_len, std::int64_t{1}}));
  const auto share = [&](std::int64_t length) {
    const double cells = static_cast<double>(longest) * static_cast<double>(length) / longer;
    return std::max({static_cast<std::int64_t>(std::llround(cells)), longest / 8, std::int64_t{1}});
  };
  return {share(q_len), share(kv_len)};
}

std::vector<std::int64_t> tick_positions(std::int64_t begin, std::int64_t length,
                                         std::int64_t most) {
  const std::int64_t least = ceil_div(length, std::max<std::int64_t>(most, 1));
  std::int64_t step = 1;
  while (step < least) step *= 2;
  if (length % step != 0) {
    step = 1;
    for (int i = 0; step < least; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;  // 1 2 5 10
  }
  const std::int64_t end = begin + length;
  std::vector<std::int64_t> ticks = {begin};
  for (std::int64_t at = begin / step * step + step; at < end; at += step)
    if (2 * (at - begin) > step && 2 * (end - at) > step) ticks.push_back(at);
  ticks.push_back(end);
  return ticks;
}

Picture picture_of(const BlockMask& mask, const DrawOptions& options, const CellLimit& limit) {
  check_blocks(mask, options);
  const auto [q_len, kv_len] = mask.seq_lengths();
  const std::int64_t per_row = ceil_div(mask.q_blocks(), limit.q);
  const std::int64_t per_col = ceil_div(mask.kv_blocks(), limit.kv);
  Picture picture;
  picture.title = options.title;
  if (picture.title.empty())
    picture.title = mask.has_mask_mod() ? mask.mask_mod().to_string() : "block mask";
  picture.caption = block_caption(mask, options, per_row, per_col);
  picture.q =
      block_axis("q_idx", mask.q_begin(), q_len, mask.block_size().q, mask.q_blocks(), limit.q);
  picture.kv = block_axis("kv_idx", 0, kv_len, mask.block_size().kv, mask.kv_blocks(), limit.kv);
  picture.elements = mask.block_size() == BlockSize(1) && per_row == 1 && per_col == 1;
  const std::int64_t rows = picture.q.cells(), cols = picture.kv.cells();
  CellCounts counts(rows, cols, per_col);
  for (std::int64_t q_block = 0; q_block < mask.q_blocks(); ++q_block)
    for (const BlockRun& run : mask.runs(options.b, options.h, q_block))
      counts.add(q_block / per_row, run);
  picture.kinds.reserve(rows * cols);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t height = std::min(per_row, mask.q_blocks() - row * per_row);
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t width = std::min(per_col, mask.kv_blocks() - col * per_col);
      picture.kinds.push_back(counts.kind(picture.kinds.size(), height * width));
    }
  }
  return picture;
}

}  // namespace quire::drawing
