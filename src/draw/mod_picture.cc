// Pictures of mods. A mask mod is shown as blocks the size of a cell, a score mod as the mean of
// what it adds to each cell. Only the batch and head that are drawn are evaluated. Draw layer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "draw/picture.h"
#include "formula/graph.h"
#include "mask/block_mask_data.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "quire/evaluate.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/executor_of.h"
#include "runtime/fail.h"
#include "runtime/run_parallel.h"

namespace quire::drawing {
namespace {

constexpr std::int64_t kMostEvaluated = std::int64_t{1} << 30;
constexpr std::int64_t kStripRows = 64;  // the rows of a tile: fewer would not be faster
// Scores evaluated for one picture: about a second. If there are more, fewer rows of each cell are
// evaluated.
constexpr std::int64_t kEvaluatedInAll = std::int64_t{1} << 27;
constexpr std::int64_t kEvaluatedAtOnce = std::int64_t{1} << 22;  // per thread, 16 MiB

void check_sizes(std::int64_t q_len, std::int64_t kv_len, std::int64_t most,
                 const DrawOptions& options) {
  check_size("draw", "q_len", q_len, 1, most);
  check_size("draw", "kv_len", kv_len, 1, most);
  check_size("draw", "q_begin", options.q_begin, 0, mask::kMostPosition);
  check_size("draw", "batch", options.batch, 1, mask::kMostPosition);
  check_size("draw", "heads", options.heads, 1, mask::kMostPosition);
  const auto check_index = [](const char* name, std::int64_t index, std::int64_t size) {
    if (index < 0 || index >= size)
      fail(ErrorKind::index, "draw", "{} {} is outside 0..{}", name, index, size - 1);
  };
  check_index("b", options.b, options.batch);
  check_index("h", options.h, options.heads);
}

// Calls build(formula of the drawn plane), in which that plane is (0, 0). The text of a fault names
// b and h; the real ones are put back into it.
template <class Build>
auto build_plane(const Formula& formula, const DrawOptions& options, const Build& build) {
  if (options.b == 0 && options.h == 0) return build(formula);
  const auto number = [](std::int64_t value) { return Formula::parse(std::to_string(value)); };
  try {
    return build(formula::substitute(formula::substitute(formula, Op::kBatch, number(options.b)),
                                     Op::kHead, number(options.h)));
  } catch (const Error& error) {
    constexpr std::string_view kPlace = " at b=0, h=0, ";
    std::string text = error.what();
    if (const std::size_t at = text.find(kPlace); at != std::string::npos)
      text.replace(at, kPlace.size(), fmt::format(" at b={}, h={}, ", options.b, options.h));
    throw Error(error.kind(), text);
  }
}

std::string mod_caption(const DrawOptions& options, const Axis& q, const Axis& kv,
                        const char* cell) {
  std::string text =
      fmt::format("batch {} of {}, head {} of {}; {} queries x {} keys; a cell: ", options.b,
                  options.batch, options.h, options.heads, q.length, kv.length);
  if (q.step == 1 && kv.step == 1) return text + "an element";
  return text + fmt::format("{}{} x {} elements", cell, q.step, kv.step);
}

// What was seen of the elements of one cell.
struct CellMean {
  double sum = 0;
  std::int64_t count = 0;
  bool nan = false, infinite = false;

  void add(std::span<const float> values, float minus) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float value : values) {
      const float added = value - minus;
      const bool finite = std::abs(added) < kInfinity;
      sum += finite ? added : 0;
      count += finite;
      nan |= std::isnan(added);
      infinite |= added == kInfinity;
    }
  }
  CellKind kind() const {
    if (nan) return CellKind::kNan;
    if (infinite) return CellKind::kInfinite;
    return count > 0 ? CellKind::kVisible : CellKind::kHidden;
  }
  float mean() const {
    return count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0;
  }
};

// A strip of a heat map: several rows of cells within 64 rows of elements, or one taller row of
// which the middle elements are evaluated.
class HeatStrip {
 public:
  HeatStrip(const Formula& formula, const DrawOptions& options, const Axis& q, const Axis& kv)
      : formula_(formula),
        options_(options),
        q_(q),
        kv_(kv),
        most_rows_(
            std::clamp(kEvaluatedInAll / (q.cells() * kv.length), std::int64_t{1}, kStripRows)) {}

  /// Rows of cells per strip.
  std::int64_t cell_rows() const { return std::max<std::int64_t>(most_rows_ / q_.step, 1); }

  /// The cells of rows [row, row_end), at most a strip.
  const std::vector<CellMean>& evaluate_cells(std::int64_t row, std::int64_t row_end) {
    cells_.assign((row_end - row) * kv_.cells(), CellMean());
    const std::int64_t begin = row * q_.step;
    const std::int64_t height = std::min(row_end * q_.step, q_.length) - begin;
    const std::int64_t rows = std::min(height, most_rows_);
    const std::int64_t q_begin = q_.begin + begin + (height - rows) / 2;
    const std::int64_t keys = kEvaluatedAtOnce / rows;
    for (std::int64_t kv = 0; kv < kv_.length; kv += keys)
      add(q_begin, rows, kv, std::min(keys, kv_.length - kv));
    return cells_;
  }

 private:
  void add(std::int64_t q_begin, std::int64_t rows, std::int64_t kv_begin, std::int64_t keys) {
    const Tensor score = Tensor::from({options_.score}, {1, 1, 1, 1});
    const EvaluateOptions at{.q_begin = q_begin, .kv_begin = kv_begin, .executor = &executor_};
    const Tensor scores = build_plane(formula_, options_, [&](const Formula& formula) {
      return evaluate(ScoreMod(formula), score.view().expand({1, 1, rows, keys}), at);
    });
    const float* value = scores.data_as<float>();
    for (std::int64_t row = 0; row < rows; ++row) {
      CellMean* cells = cells_.data() + row / q_.step * kv_.cells();
      for (std::int64_t key = kv_begin; key < kv_begin + keys;) {
        const std::int64_t cell = key / kv_.step;
        const std::int64_t end = std::min((cell + 1) * kv_.step, kv_begin + keys);
        cells[cell].add({value, static_cast<std::size_t>(end - key)}, options_.score);
        value += end - key;
        key = end;
      }
    }
  }

  const Formula& formula_;
  const DrawOptions& options_;
  const Axis &q_, &kv_;
  std::int64_t most_rows_;
  std::vector<CellMean> cells_;
  SerialExecutor executor_;  // strips are evaluated in parallel
};

void evaluate_cells(const Formula& formula, const DrawOptions& options, Picture& picture) {
  const std::int64_t rows = picture.q.cells(), cols = picture.kv.cells();
  picture.kinds.resize(rows * cols);
  picture.values.resize(picture.kinds.size());
  const std::int64_t height = HeatStrip(formula, options, picture.q, picture.kv).cell_rows();
  const std::shared_ptr<Executor> executor = executor_of(options.executor);
  run_parallel(*executor, ceil_div(rows, height), [&](std::size_t item, auto) {
    const std::int64_t row = static_cast<std::int64_t>(item) * height;
    HeatStrip strip(formula, options, picture.q, picture.kv);
    std::size_t at = row * cols;
    for (const CellMean& cell : strip.evaluate_cells(row, std::min(row + height, rows))) {
      picture.kinds[at] = cell.kind();
      picture.values[at++] = cell.mean();
    }
  });
}

}  // namespace

Picture picture_of(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                   const DrawOptions& options, const CellLimit& limit) {
  check_sizes(q_len, kv_len, mask::kMostPosition, options);
  const BlockSize cell(ceil_div(q_len, limit.q), ceil_div(kv_len, limit.kv));
  const BlockMask blocks = build_plane(mod.formula(), options, [&](const Formula& formula) {
    return create_block_mask(
        MaskMod(formula), 1, 1, q_len, kv_len,
        {.block_size = cell, .q_begin = options.q_begin, .executor = options.executor});
  });
  DrawOptions plane = options;
  plane.b = plane.h = 0;
  if (plane.title.empty()) plane.title = mod.to_string();
  Picture picture = picture_of(blocks, plane, limit);
  picture.caption = mod_caption(options, picture.q, picture.kv, "");
  return picture;
}

Picture picture_of(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                   const DrawOptions& options, const CellLimit& limit) {
  check_sizes(q_len, kv_len, kMostEvaluated, options);
  Picture picture;
  picture.title = options.title.empty() ? mod.to_string() : options.title;
  picture.q = {"q_idx", options.q_begin, q_len, ceil_div(q_len, limit.q)};
  picture.kv = {"kv_idx", 0, kv_len, ceil_div(kv_len, limit.kv)};
  picture.elements = picture.q.step == 1 && picture.kv.step == 1;
  picture.caption = fmt::format("added to a score of {}; ", options.score) +
                    mod_caption(options, picture.q, picture.kv, "the mean of ");
  evaluate_cells(mod.formula(), options, picture);
  return picture;
}

}  // namespace quire::drawing
