// BlockMask::to_string and operator<<: the grid that torch prints. A cell shows whether all, some
// or none of its blocks are computed, counted from the runs. Mask layer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string_view>
#include <vector>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using namespace mask;

namespace {

// As Python writes a tuple: "()", "(3,)", "(3, 4)".
std::string tuple_text(std::span<const std::int64_t> values) {
  return fmt::format("({}{})", fmt::join(values, ", "), values.size() == 1 ? "," : "");
}

// Blocks per cell along an axis of `blocks`, for at most `cells` cells; a negative number of cells:
// one block each. 30 blocks in 20 cells: 2 each, so 15 cells are drawn.
std::int64_t blocks_per_cell(std::int64_t blocks, std::int64_t cells) {
  if (cells == 0) {
    fail(ErrorKind::value, "BlockMask::to_string", "grid_size must not be 0; -1 draws every block");
  }
  return cells < 0 ? 1 : std::max<std::int64_t>(1, ceil_div(blocks, cells));
}

class BlockPicture {
 public:
  BlockPicture(const BlockMaskData& data, std::array<std::int64_t, 2> grid_size)
      : data_(data),
        row_step_(blocks_per_cell(data.q_blocks, grid_size[0])),
        column_step_(blocks_per_cell(data.kv_blocks, grid_size[1])),
        computed_(ceil_div(data.kv_blocks, column_step_)) {}

  std::string draw(std::int64_t plane) {
    std::string text;
    for (std::int64_t row = 0; row < data_.q_blocks; row += row_step_) {
      const std::int64_t end = std::min(row + row_step_, data_.q_blocks);
      std::ranges::fill(computed_, 0);
      for (std::int64_t r = row; r < end; ++r)
        for (const BlockRun& run : data_.rows->row(plane, r)) count(run);
      for (std::size_t cell = 0; cell < computed_.size(); ++cell) {
        const std::int64_t column = static_cast<std::int64_t>(cell) * column_step_;
        const std::int64_t width = std::min(column_step_, data_.kv_blocks - column);
        const std::string_view shade = shade_of(computed_[cell], (end - row) * width);
        text.append(shade).append(shade);
      }
      text += '\n';
    }
    return text;
  }

 private:
  static std::string_view shade_of(std::int64_t computed, std::int64_t blocks) {
    if (computed == 0) return " ";
    return computed == blocks ? "█" : "░";
  }

  void count(const BlockRun& run) {
    for (std::int64_t begin = run.begin; begin < run.end();) {
      const std::int64_t cell = begin / column_step_;
      const std::int64_t end = std::min(run.end(), (cell + 1) * column_step_);
      computed_[cell] += end - begin;
      begin = end;
    }
  }

  const BlockMaskData& data_;
  std::int64_t row_step_, column_step_;
  std::vector<std::int64_t> computed_;  // per cell of the line being drawn
};

}  // namespace

std::string BlockMask::to_string(std::array<std::int64_t, 2> grid_size, std::int64_t limit) const {
  const FloatEnv float_env;
  BlockPicture picture(*data_, grid_size);
  const std::size_t batch_axes = data_->shape.rank() - 2;
  std::string text;
  for (std::int64_t place = 0; place < data_->batch * data_->heads; ++place) {
    if (place > 0) text += '\n';
    if (place == limit) {
      text +=
          "...\nTo print out more, set BlockMask.to_string(limit=N)\n"
          "You can also index (BlockMask[batch, head]) to choose a specific batch or head";
      break;
    }
    const std::int64_t at[] = {place / data_->heads, place % data_->heads};
    text += tuple_text(std::span(at).last(batch_axes)) + '\n';
    text += picture.draw(data_->rows->plane(at[0], at[1]));
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const BlockMask& mask) {
  const FloatEnv float_env;
  constexpr std::string_view kBlank = " \n";
  std::string picture = mask.to_string();
  picture.erase(picture.find_last_not_of(kBlank) + 1);
  double sparsity = mask.sparsity();
  if (std::isnan(sparsity)) sparsity = std::fabs(sparsity);  // no elements; any sign of NaN
  return out << fmt::format("BlockMask(shape={}, sparsity={:.2f}%, \n{}\n)",
                            tuple_text(mask.shape()), sparsity, picture);
}

}  // namespace quire
