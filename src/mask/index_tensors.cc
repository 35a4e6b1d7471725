// The index tensors of a BlockMask, equal to torch's entry for entry: a row lists its blocks in
// ascending order, followed by all other blocks in ascending order (the result of a stable
// descending argsort of zeros and ones). Made from the runs on request. Mask layer.
#include <algorithm>
#include <cstddef>
#include <numeric>

#include "mask/block_mask_data.h"
#include "mask/block_rows.h"
#include "mask/fill_planes.h"
#include "quire/block_mask.h"
#include "runtime/memory.h"

namespace quire {

using namespace mask;

namespace {

// Which runs a list contains.
enum class Listed {
  kAll,         // full blocks have no list of their own
  kAllButFull,  // the partial list next to a full one; torch counts cut-off blocks as partial
  kFull,
};

bool is_listed(BlockKind kind, Listed listed) {
  return listed == Listed::kAll || (kind == BlockKind::kFull) == (listed == Listed::kFull);
}

std::int32_t count_listed(std::span<const BlockRun> runs, Listed listed) {
  std::int32_t count = 0;
  for (const BlockRun& run : runs)
    if (is_listed(run.kind, listed)) count += static_cast<std::int32_t>(run.length);
  return count;
}

std::int32_t* write_blocks(std::int32_t* out, std::int64_t begin, std::int64_t end) {
  std::iota(out, out + (end - begin), static_cast<std::int32_t>(begin));
  return out + (end - begin);
}

void write_list(std::span<const BlockRun> runs, Listed listed, std::int64_t width,
                std::int32_t* out) {
  std::int32_t* front = out;
  std::int32_t* others = out + count_listed(runs, listed);
  std::int64_t next = 0;
  for (const BlockRun& run : runs) {
    others = write_blocks(others, next, run.begin);
    std::int32_t*& to = is_listed(run.kind, listed) ? front : others;
    to = write_blocks(to, run.begin, run.end());
    next = run.end();
  }
  write_blocks(others, next, width);
}

// int32 [batch axes of the mask, rows of `rows`] or, with a width, [..., rows, width].
Tensor make_tensor(const BlockMaskData& data, const BlockRows& rows,
                   std::optional<std::int64_t> width, const char* name, Executor* executor,
                   FillRow fill_row) {
  Shape shape;
  for (std::size_t axis = 0; axis + 2 < data.shape.rank(); ++axis)
    shape.push_back(data.shape[axis]);
  shape.push_back(rows.rows_per_plane());
  if (width.has_value()) shape.push_back(*width);
  std::int64_t bytes = sizeof(std::int32_t);
  for (const std::int64_t size : shape) bytes = saturating_product(bytes, size);
  require_memory("BlockMask", name, bytes);
  Tensor result = Tensor::empty(shape, DType::i32);
  fill_planes(rows,
              {.data = result.data(),
               .batch = data.batch,
               .heads = data.heads,
               .row_bytes = static_cast<std::size_t>(width.value_or(1)) * sizeof(std::int32_t)},
              executor, fill_row);
  return result;
}

Tensor num_blocks(const BlockMaskData& data, const BlockRows& rows, Listed listed, const char* name,
                  Executor* executor) {
  return make_tensor(data, rows, std::nullopt, name, executor,
                     [listed](std::span<const BlockRun> runs, void* out) {
                       *static_cast<std::int32_t*>(out) = count_listed(runs, listed);
                     });
}

Tensor indices(const BlockMaskData& data, const BlockRows& rows, std::int64_t width, Listed listed,
               const char* name, Executor* executor) {
  return make_tensor(data, rows, width, name, executor,
                     [listed, width](std::span<const BlockRun> runs, void* out) {
                       write_list(runs, listed, width, static_cast<std::int32_t*>(out));
                     });
}

Listed partial_list(const BlockMaskData& data) {
  return data.separate_full_blocks ? Listed::kAllButFull : Listed::kAll;
}

Tensor copy_of(const Tensor& given, const char* name) {
  require_memory(
      "BlockMask", name,
      saturating_product(given.numel(), static_cast<std::int64_t>(dtype_size(given.dtype()))));
  return given.clone();
}

// Lists of pages are stored as narrow as they were made.
Tensor copy_of_indices(const BlockMaskData& data, const Tensor& given, const char* name) {
  const std::int64_t width = given.dim(-1), wanted = data.kv_blocks;
  if (!data.given->are_padded || width >= wanted) return copy_of(given, name);
  Shape shape = given.shape();
  shape[shape.rank() - 1] = wanted;
  std::int64_t bytes = dtype_size(given.dtype());
  for (const std::int64_t size : shape) bytes = saturating_product(bytes, size);
  require_memory("BlockMask", name, bytes);
  Tensor result(shape, given.dtype());
  const std::int64_t size = dtype_size(given.dtype());
  const auto* from = static_cast<const std::byte*>(given.data());
  auto* to = static_cast<std::byte*>(result.data());
  for (std::int64_t row = 0; row < result.numel() / std::max<std::int64_t>(wanted, 1); ++row)
    std::copy_n(from + row * width * size, width * size, to + row * wanted * size);
  return result;
}

}  // namespace

Tensor BlockMask::kv_num_blocks(Executor* executor) const {
  if (data_->given.has_value()) return copy_of(data_->given->kv_num_blocks, "kv_num_blocks");
  return num_blocks(*data_, *data_->rows, partial_list(*data_), "kv_num_blocks", executor);
}

Tensor BlockMask::kv_indices(Executor* executor) const {
  if (data_->given.has_value())
    return copy_of_indices(*data_, data_->given->kv_indices, "kv_indices");
  return indices(*data_, *data_->rows, data_->kv_blocks, partial_list(*data_), "kv_indices",
                 executor);
}

std::optional<Tensor> BlockMask::full_kv_num_blocks(Executor* executor) const {
  if (!data_->separate_full_blocks) return std::nullopt;
  if (data_->given.has_value())
    return copy_of(*data_->given->full_kv_num_blocks, "full_kv_num_blocks");
  return num_blocks(*data_, *data_->rows, Listed::kFull, "full_kv_num_blocks", executor);
}

std::optional<Tensor> BlockMask::full_kv_indices(Executor* executor) const {
  if (!data_->separate_full_blocks) return std::nullopt;
  if (data_->given.has_value())
    return copy_of_indices(*data_, *data_->given->full_kv_indices, "full_kv_indices");
  return indices(*data_, *data_->rows, data_->kv_blocks, Listed::kFull, "full_kv_indices",
                 executor);
}

std::optional<Tensor> BlockMask::q_num_blocks(Executor* executor) const {
  if (!data_->has_q_blocks) return std::nullopt;
  return num_blocks(*data_, *transposed(), partial_list(*data_), "q_num_blocks", executor);
}

std::optional<Tensor> BlockMask::q_indices(Executor* executor) const {
  if (!data_->has_q_blocks) return std::nullopt;
  return indices(*data_, *transposed(), data_->q_blocks, partial_list(*data_), "q_indices",
                 executor);
}

std::optional<Tensor> BlockMask::full_q_num_blocks(Executor* executor) const {
  if (!data_->has_q_blocks || !data_->separate_full_blocks) return std::nullopt;
  return num_blocks(*data_, *transposed(), Listed::kFull, "full_q_num_blocks", executor);
}

std::optional<Tensor> BlockMask::full_q_indices(Executor* executor) const {
  if (!data_->has_q_blocks || !data_->separate_full_blocks) return std::nullopt;
  return indices(*data_, *transposed(), data_->q_blocks, Listed::kFull, "full_q_indices", executor);
}

Tensor BlockMask::to_dense(Executor* executor) const {
  return make_tensor(*data_, *data_->rows, data_->kv_blocks, "to_dense", executor,
                     [width = data_->kv_blocks](std::span<const BlockRun> runs, void* out) {
                       auto* row = static_cast<std::int32_t*>(out);
                       std::fill_n(row, width, 0);
                       for (const BlockRun& run : runs)
                         std::fill_n(row + run.begin, std::int64_t{run.length}, 1);
                     });
}

}  // namespace quire
