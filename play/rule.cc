// Reads a rule, proves its mask and looks at parts of the plane. Play.
#include "rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "quire/error.h"
#include "quire/evaluate.h"
#include "quire/explain.h"

namespace quire::play {
namespace {

NamedBuffers read_tables(const RuleText& typed) {
  NamedBuffers buffers;
  const bool named = typed.text.starts_with('@');
  const std::string entry = named ? typed.text.substr(1) : typed.entry;
  if (!entry.empty()) buffers = mods::gallery_entry(entry).buffers(typed.sizes);
  std::istringstream lines(typed.tables);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto table = mods::read_table(line, typed.sizes);
    if (!table.has_value()) {
      throw Error(ErrorKind::value,
                  "a table must look like doc = 1, 1, 2 or doc = i32[kv_len]: kv_idx // 512; got '" +
                      line + "'");
    }
    const auto same = std::find_if(buffers.begin(), buffers.end(),
                                   [&](const auto& one) { return one.first == table->first; });
    if (same == buffers.end())
      buffers.push_back(*std::move(table));
    else
      same->second = std::move(table->second);
  }
  return buffers;
}

ExplainOptions explain_options(const mods::GallerySizes& sizes) {
  return {.batch = sizes.batch, .heads = sizes.heads, .q_len = sizes.q_len, .kv_len = sizes.kv_len};
}

Formula read_formula(const RuleText& typed, const NamedBuffers& buffers) {
  const std::string text = typed.text.starts_with('@')
                               ? mods::gallery_entry(typed.text.substr(1)).full_text(typed.sizes)
                               : typed.text;
  return parse_undeclared(text, buffers, explain_options(typed.sizes));
}

// The formula at (b, h, q_step * q_idx, kv_begin + kv_step * kv_idx).
struct Place {
  std::int64_t b = 0, h = 0, kv_begin = 0, step = 1;
};

ExprBase moved(const Formula& formula, const detail::ModArguments& at, const Place& place) {
  const IntExpr q = at.q_idx * place.step, kv = at.kv_idx * place.step + place.kv_begin;
  const IntExpr b = at.b * 0 + place.b, h = at.h * 0 + place.h;
  return detail::apply(formula, {detail::to_base(at.score), detail::to_base(b), detail::to_base(h),
                                 detail::to_base(q), detail::to_base(kv)});
}

// How many whole or begun cells of the port lie below `length`.
std::int64_t cells_inside(std::int64_t begin, std::int64_t cell, std::int64_t length,
                          std::int64_t cells) {
  if (begin >= length) return 0;
  return std::min(cells, (length - begin + cell - 1) / cell);
}

}  // namespace

Rule::Rule(const RuleText& typed)
    : sizes_(typed.sizes),
      b_(typed.b),
      h_(typed.h),
      buffers_(read_tables(typed)),
      formula_(read_formula(typed, buffers_)) {}

std::vector<std::string> Rule::without_contents() const {
  std::vector<std::string> names;
  for (const Buffer& buffer : formula_.buffers())
    if (!buffer.has_data()) names.push_back(buffer.name());
  return names;
}

std::string Rule::explained() const { return explain(formula_, explain_options(sizes_)); }

MaskNumbers Rule::prove(std::int64_t block, std::size_t most_steps) const {
  const detail::ModArguments at = detail::mod_arguments();
  const MaskMod mod{Formula(moved(formula_, at, {.b = b_, .h = h_}))};
  SerialExecutor serial;
  MaskNumbers numbers;
  numbers.report.most_steps = most_steps;
  const BlockMask mask = create_block_mask(
      mod, 1, 1, sizes_.q_len, sizes_.kv_len,
      {.block_size = block, .executor = &serial, .report = &numbers.report});
  for (std::int64_t row = 0; row < mask.q_blocks(); ++row) {
    for (const BlockRun& run : mask.runs(0, 0, row))
      (run.kind == BlockKind::kPartial ? numbers.partial : numbers.full) += run.length;
  }
  numbers.empty = mask.q_blocks() * mask.kv_blocks() - numbers.full - numbers.partial;
  numbers.bytes = static_cast<std::int64_t>(mask.nbytes());
  numbers.sparsity = mask.sparsity();
  return numbers;
}

std::vector<std::uint8_t> Rule::mask_cells(const ViewPort& port) const {
  constexpr std::uint8_t kOutside = 3;
  std::vector<std::uint8_t> cells(static_cast<std::size_t>(port.rows * port.cols), kOutside);
  const std::int64_t rows = cells_inside(port.q_begin, port.cell, sizes_.q_len, port.rows);
  const std::int64_t cols = cells_inside(port.kv_begin, port.cell, sizes_.kv_len, port.cols);
  if (rows == 0 || cols == 0) return cells;
  const detail::ModArguments at = detail::mod_arguments();
  const MaskMod mod{
      Formula(moved(formula_, at, {.b = b_, .h = h_, .kv_begin = port.kv_begin}))};
  SerialExecutor serial;
  const BlockMask mask = create_block_mask(
      mod, 1, 1, std::min(rows * port.cell, sizes_.q_len - port.q_begin),
      std::min(cols * port.cell, sizes_.kv_len - port.kv_begin),
      {.block_size = port.cell, .q_begin = port.q_begin, .executor = &serial});
  for (std::int64_t row = 0; row < rows; ++row) {
    std::uint8_t* line = cells.data() + row * port.cols;
    std::fill(line, line + cols, std::uint8_t{0});
    for (const BlockRun& run : mask.runs(0, 0, row))
      std::fill(line + run.begin, line + run.end(),
                std::uint8_t{run.kind == BlockKind::kPartial ? std::uint8_t{1} : std::uint8_t{2}});
  }
  return cells;
}

std::vector<float> Rule::score_cells(const ViewPort& port, float score) const {
  std::vector<float> cells(static_cast<std::size_t>(port.rows * port.cols),
                           std::numeric_limits<float>::quiet_NaN());
  const std::int64_t rows = cells_inside(port.q_begin, port.cell, sizes_.q_len, port.rows);
  const std::int64_t cols = cells_inside(port.kv_begin, port.cell, sizes_.kv_len, port.cols);
  if (rows == 0 || cols == 0) return cells;
  const detail::ModArguments at = detail::mod_arguments();
  const ScoreMod mod{Formula(moved(
      formula_, at, {.b = b_, .h = h_, .kv_begin = port.kv_begin, .step = port.cell}))};
  SerialExecutor serial;
  Tensor scores = Tensor::empty({1, 1, rows, cols}, DType::f32);
  std::fill_n(static_cast<float*>(scores.data()), rows * cols, score);
  const Tensor out = evaluate(mod, scores,
                              {.q_begin = port.q_begin / port.cell, .executor = &serial});
  const float* from = static_cast<const float*>(out.data());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col)
      cells[static_cast<std::size_t>(row * port.cols + col)] = from[row * cols + col] - score;
  return cells;
}

}  // namespace quire::play
