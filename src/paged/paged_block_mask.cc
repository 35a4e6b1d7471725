// physical_block_mask: the lists of a logical block mask, each block replaced by its page.
// Paged layer.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "mask/block_mask_data.h"
#include "quire/error.h"
#include "quire/paged_attention.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

constexpr const char* kConvert = "convert_logical_block_mask";

struct TableRows {
  std::vector<const std::int64_t*> of;  // of each batch entry
  std::int64_t step, n_pages;
};

// Converts key blocks [batch, ...] of any integer type to pages, i32.
Tensor pages_of_blocks(const Tensor& blocks, const TableRows& rows) {
  Tensor pages = to(blocks, DType::i32);
  auto* const values = pages.data_as<std::int32_t>();
  const std::int64_t batch = std::ssize(rows.of),
                     per_batch = pages.numel() / std::max<std::int64_t>(batch, 1);
  for (std::int64_t i = 0; i < pages.numel(); ++i) {
    const std::int64_t block = values[i];
    if (block < 0 || block >= rows.n_pages) {
      fail(ErrorKind::index, kConvert, "the mask lists block {} where there are {} pages", block,
           rows.n_pages);
    }
    values[i] = static_cast<std::int32_t>(rows.of[i / per_batch][block * rows.step]);
  }
  return pages;
}

}  // namespace

BlockMask physical_block_mask(const BlockMask& logical, const PageTables& tables,
                              std::span<const std::int64_t> batch_idx,
                              const MaskMod& physical_rule) {
  const FloatEnv float_env;
  const BlockSize size = logical.block_size();
  if (size.kv != tables.page_size()) {
    fail(ErrorKind::value, kConvert,
         "the mask's blocks of keys must be pages; got blocks of {} and pages of {}", size.kv,
         tables.page_size());
  }
  if (logical.shape().rank() != 4) {
    fail(ErrorKind::value, kConvert, "the mask must be [batch, heads, q_len, kv_len]; got {}",
         to_string(logical.shape()));
  }
  const std::int64_t batch = logical.batch();
  if (!batch_idx.empty() && std::ssize(batch_idx) < batch) {
    fail(ErrorKind::value, kConvert,
         "batch_idx must have an entry for each of {} batch entries; got {}", batch,
         batch_idx.size());
  }
  const ConstTensorView table = tables.page_table();
  TableRows rows{{}, table.strides()[1], tables.n_pages()};
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t at = batch_idx.empty() ? b : batch_idx[b];
    const std::int64_t count = tables.max_batch_size();
    if (at < -count || at >= count)
      fail(ErrorKind::index, kConvert, "batch_idx must be in {}..{}; got {}", -count, count - 1,
           at);
    rows.of.push_back(static_cast<const std::int64_t*>(table.data()) +
                      (at < 0 ? at + count : at) * table.strides()[0]);
  }
  const Tensor blocks = logical.kv_indices();
  if (blocks.dim(-1) > tables.n_pages()) {
    fail(ErrorKind::value, kConvert, "the mask has {} blocks of keys where there are {} pages",
         blocks.dim(-1), tables.n_pages());
  }
  const Tensor num = logical.kv_num_blocks(), pages = pages_of_blocks(blocks, rows);
  FromKvBlocksOptions options{
      .block_size = size,
      .mask_mod = physical_rule,
      .seq_lengths = std::pair{logical.seq_lengths().first, tables.n_pages() * tables.page_size()},
      .are_pages = true};
  std::optional<Tensor> full_num, full_pages;
  if (logical.separate_full_blocks()) {
    full_num = logical.full_kv_num_blocks();
    full_pages = pages_of_blocks(*logical.full_kv_indices(), rows);
    options.full = BlockLists{*full_num, *full_pages};
  }
  auto data = std::make_shared<mask::BlockMaskData>(
      BlockMask::from_kv_blocks({num, pages}, options).data());
  data->q_begin = logical.q_begin();
  return BlockMask(std::move(data));
}

}  // namespace quire
