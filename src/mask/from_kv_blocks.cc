// BlockMask::from_kv_blocks: a mask from block lists chosen by the caller. The lists are checked,
// copied and turned into runs; entries after num_blocks are never read. Mask layer.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "mask/block_mask_data.h"
#include "mask/size_limits.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"
#include "tensor/index_view.h"

namespace quire {

using namespace mask;

namespace {

constexpr const char* kFromKvBlocks = "from_kv_blocks";

Shape without_last(const Shape& shape) {
  Shape result = shape;
  result.erase(result.rank() - 1);
  return result;
}

// One pair of tensors, copied, with the name its errors use.
struct Lists {
  const char* prefix;  // "" or "full_"
  bool are_pages;
  Tensor num_blocks, indices;

  std::int64_t width() const { return indices.dim(-1); }
};

void check_tensors(const BlockLists& lists, const char* prefix) {
  const Shape &num_shape = lists.num_blocks.shape(), &shape = lists.indices.shape();
  check_indices(kFromKvBlocks, fmt::format("{}kv_num_blocks", prefix), lists.num_blocks);
  check_indices(kFromKvBlocks, fmt::format("{}kv_indices", prefix), lists.indices);
  if (shape.rank() < 2 || shape.rank() > 4)
    fail(ErrorKind::value, kFromKvBlocks, "{}kv_indices must have 2 to 4 axes; got {}", prefix,
         to_string(shape));
  if (num_shape != without_last(shape)) {
    fail(
        ErrorKind::value, kFromKvBlocks,
        "{0}kv_num_blocks must have the shape of {0}kv_indices without its last axis, {1}; got {2}",
        prefix, to_string(without_last(shape)), to_string(num_shape));
  }
}

void check_together(const BlockLists& kv, const FromKvBlocksOptions& options) {
  if (!options.full.has_value()) return;
  const Shape &partial = kv.indices.shape(), &full = options.full->indices.shape();
  if (without_last(partial) != without_last(full) ||
      (partial != full && !options.seq_lengths.has_value())) {
    fail(ErrorKind::value, kFromKvBlocks,
         "full_kv_indices must have the shape of kv_indices, {} (but for the last axis if "
         "seq_lengths are given); got {}",
         to_string(partial), to_string(full));
  }
}

Tensor copy_of(const ConstTensorView& view) {
  require_memory(kFromKvBlocks, "a copy of the lists",
                 saturating_product(view.numel(), std::int64_t(dtype_size(view.dtype()))));
  return contiguous(view);
}

// The position of a row, for error texts.
struct RowPlace {
  std::int64_t b, h, row;

  std::string text() const { return fmt::format("batch {}, head {}, row {}", b, h, row); }
};

struct ListedBlock {
  std::int64_t block;
  BlockKind kind;

  friend auto operator<=>(const ListedBlock&, const ListedBlock&) = default;
};

// Appends the blocks of row `at`, counted over all rows.
void read_row(const Lists& lists, std::int64_t at, std::int64_t kv_blocks, const RowPlace& place,
              BlockKind kind, std::vector<ListedBlock>& blocks) {
  const IndexView counts(lists.num_blocks), indices(lists.indices);
  const std::int64_t count = counts[at], width = lists.width();
  if (count < 0 || count > width) {
    fail(ErrorKind::value, kFromKvBlocks, "{}kv_num_blocks of {} must be in 0..{}; got {}",
         lists.prefix, place.text(), width, count);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t block = indices[at * width + i];
    if (block == -1 && lists.are_pages) continue;
    if (block < 0 || block >= kv_blocks) {
      fail(ErrorKind::index, kFromKvBlocks, "{}kv_indices of {} must be in 0..{}; got {}",
           lists.prefix, place.text(), kv_blocks - 1, block);
    }
    blocks.push_back({block, kind});
  }
}

// Also sorts them.
void check_once(std::vector<ListedBlock>& blocks, const RowPlace& place) {
  if (!std::ranges::is_sorted(blocks)) std::ranges::sort(blocks);
  const auto twice = std::ranges::adjacent_find(blocks, {}, &ListedBlock::block);
  if (twice == blocks.end()) return;
  if (twice->kind != std::next(twice)->kind) {
    fail(ErrorKind::value, kFromKvBlocks, "block {} of {} is in kv_indices and in full_kv_indices",
         twice->block, place.text());
  }
  fail(ErrorKind::value, kFromKvBlocks, "block {} of {} is twice in {}kv_indices", twice->block,
       place.text(), twice->kind == BlockKind::kFull ? "full_" : "");
}

BlockRows make_rows(const BlockMaskData& data, const Lists& partial,
                    const std::optional<Lists>& full) {
  BlockRowsBuilder builder(data.batch, data.heads, data.q_blocks);
  std::vector<ListedBlock> blocks;
  RunList runs;
  for (std::int64_t at = 0; at < data.batch * data.heads * data.q_blocks; ++at) {
    const std::int64_t plane = at / data.q_blocks;
    const RowPlace place{plane / data.heads, plane % data.heads, at % data.q_blocks};
    blocks.clear();
    read_row(partial, at, data.kv_blocks, place, BlockKind::kPartial, blocks);
    if (full.has_value()) read_row(*full, at, data.kv_blocks, place, BlockKind::kFull, blocks);
    check_once(blocks, place);
    runs.clear();
    for (const ListedBlock& b : blocks) append_run(runs, b.block, b.block + 1, b.kind);
    builder.add_row(runs);
  }
  return builder.finish();
}

// Everything except rows, from shapes alone.
BlockMaskData make_sizes(const BlockLists& kv, const FromKvBlocksOptions& options) {
  const Shape& shape = kv.indices.shape();
  const BlockSize size = options.block_size;
  check_size(kFromKvBlocks, "block_size.q", size.q, 1, kMostPosition);
  check_size(kFromKvBlocks, "block_size.kv", size.kv, 1, kMostPosition);
  const std::size_t rank = shape.rank();
  std::int64_t width = shape[rank - 1];
  BlockMaskData data;
  data.block_size = size;
  data.heads = rank > 2 ? shape[rank - 3] : 1;
  data.batch = rank > 3 ? shape[rank - 4] : 1;
  data.q_blocks = shape[rank - 2];
  data.q_len = saturating_product(data.q_blocks, size.q);
  data.kv_len = saturating_product(width, size.kv);
  if (options.seq_lengths.has_value()) std::tie(data.q_len, data.kv_len) = *options.seq_lengths;
  check_size(kFromKvBlocks, "q_len", data.q_len, 0, kMostPosition);
  check_size(kFromKvBlocks, "kv_len", data.kv_len, 0, kMostPosition);
  if (options.full.has_value()) width = std::max(width, options.full->indices.dim(-1));
  data.kv_blocks = std::max(width, ceil_div(data.kv_len, size.kv));
  check_size(kFromKvBlocks, "the number of query blocks", data.q_blocks, 0, kMostBlocks);
  check_size(kFromKvBlocks, "the number of key blocks", data.kv_blocks, 0, kMostBlocks);
  data.shape = shape;
  data.shape[rank - 2] = data.q_len;
  data.shape[rank - 1] = data.kv_len;
  return data;
}

bool has_values(const Tensor& copy, const ConstTensorView& view) {
  if (copy.dtype() != view.dtype() || copy.shape() != view.shape()) return false;
  const std::size_t bytes = copy.numel() * dtype_size(copy.dtype());
  if (bytes == 0) return true;
  if (view.is_contiguous()) return std::memcmp(copy.data(), view.data(), bytes) == 0;
  return std::memcmp(copy.data(), copy_of(view).data(), bytes) == 0;
}

}  // namespace

bool BlockMask::made_from(const BlockLists& kv, const std::optional<BlockLists>& full) const {
  if (!data_->given.has_value()) return false;
  const GivenLists& given = *data_->given;
  if (given.full_kv_num_blocks.has_value() != full.has_value()) return false;
  if (!has_values(given.kv_num_blocks, kv.num_blocks) || !has_values(given.kv_indices, kv.indices))
    return false;
  return !full.has_value() || (has_values(*given.full_kv_num_blocks, full->num_blocks) &&
                               has_values(*given.full_kv_indices, full->indices));
}

BlockMask BlockMask::from_kv_blocks(const BlockLists& kv, const FromKvBlocksOptions& options) {
  const FloatEnv float_env;
  check_tensors(kv, "");
  if (options.full.has_value()) check_tensors(*options.full, "full_");
  check_together(kv, options);
  auto data = std::make_shared<BlockMaskData>(make_sizes(kv, options));
  data->separate_full_blocks = options.full.has_value();
  data->has_q_blocks = options.compute_q_blocks;
  data->chosen_by_data = true;
  data->mask_mod = options.mask_mod.has_value() ? *options.mask_mod : noop_mask();

  const bool are_pages = options.are_pages;
  const Lists partial{"", are_pages, copy_of(kv.num_blocks), copy_of(kv.indices)};
  std::optional<Lists> full;
  if (options.full.has_value())
    full = Lists{"full_", are_pages, copy_of(options.full->num_blocks),
                 copy_of(options.full->indices)};
  data->rows = std::make_shared<const BlockRows>(make_rows(*data, partial, full));
  data->given = GivenLists{partial.num_blocks, partial.indices, {}, {}, are_pages};
  if (full.has_value()) {
    data->given->full_kv_num_blocks = full->num_blocks;
    data->given->full_kv_indices = full->indices;
  }
  return BlockMask(std::move(data));
}

}  // namespace quire
