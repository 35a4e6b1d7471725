// BlockMask: sizes, single blocks, the mask mod, equality. Mask layer.
#include "quire/block_mask.h"

#include <algorithm>

#include "mask/block_mask_data.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"

namespace quire {

using mask::BlockMaskData;

const Shape& BlockMask::shape() const { return data_->shape; }
std::int64_t BlockMask::batch() const { return data_->batch; }
std::int64_t BlockMask::heads() const { return data_->heads; }
std::pair<std::int64_t, std::int64_t> BlockMask::seq_lengths() const {
  return {data_->q_len, data_->kv_len};
}
BlockSize BlockMask::block_size() const { return data_->block_size; }
std::int64_t BlockMask::q_blocks() const { return data_->q_blocks; }
std::int64_t BlockMask::kv_blocks() const { return data_->kv_blocks; }
std::int64_t BlockMask::q_begin() const { return data_->q_begin; }
bool BlockMask::separate_full_blocks() const { return data_->separate_full_blocks; }
const mask::BlockRows& BlockMask::block_rows() const { return *data_->rows; }

std::int64_t BlockMask::numel() const {
  return saturating_product(saturating_product(data_->batch, data_->heads),
                            saturating_product(data_->q_len, data_->kv_len));
}

double BlockMask::sparsity() const {
  const FloatEnv float_env;
  const mask::BlockRows& rows = *data_->rows;
  // Computed blocks per stored plane, counted once however many (batch, head) share the plane.
  std::vector<std::int64_t> of_plane(rows.planes(), -1);
  double blocks = 0;
  for (std::int64_t b = 0; b < rows.batches(); ++b) {
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      const std::int64_t plane = rows.plane(b, h);
      std::int64_t& count = of_plane[plane];
      if (count < 0) {
        count = 0;
        for (std::int64_t r = 0; r < rows.rows_per_plane(); ++r)
          for (const BlockRun& run : rows.row(plane, r)) count += run.length;
      }
      blocks += static_cast<double>(count);
    }
  }
  if (rows.batches() == 1) blocks *= static_cast<double>(data_->batch);
  if (rows.heads() == 1) blocks *= static_cast<double>(data_->heads);
  const auto area = [](const auto&... sizes) { return (static_cast<double>(sizes) * ...); };
  const double computed = blocks * area(data_->block_size.q, data_->block_size.kv);
  const double all = area(data_->batch, data_->heads, data_->q_len, data_->kv_len);
  return 100 * (1 - computed / all);
}

std::size_t BlockMask::nbytes() const {
  std::size_t bytes = sizeof(BlockMaskData) + data_->rows->nbytes();
  if (data_->given.has_value()) {
    const auto add = [&](const Tensor& tensor) {
      bytes += tensor.numel() * dtype_size(tensor.dtype());
    };
    add(data_->given->kv_num_blocks);
    add(data_->given->kv_indices);
    if (data_->given->full_kv_num_blocks.has_value()) {
      add(*data_->given->full_kv_num_blocks);
      add(*data_->given->full_kv_indices);
    }
  }
  return bytes;
}

const MaskMod& BlockMask::mask_mod() const {
  if (data_->mask_mod.has_value()) return *data_->mask_mod;
  fail(ErrorKind::runtime, "BlockMask",
       "the mask mod of an indexed block mask cannot be used: its q_idx, b and h are not those of "
       "the original; take the original mask's mask mod, shift it, and set it with set_mask_mod");
}

bool BlockMask::has_mask_mod() const { return data_->mask_mod.has_value(); }

// Which blocks are empty or listed as full was decided by another rule and stays, as in torch; in
// blocks listed as partial the new rule decides.
void BlockMask::set_mask_mod(MaskMod mod) {
  const FloatEnv float_env;
  auto data = std::make_shared<BlockMaskData>(*data_);
  data->mask_mod = std::move(mod);
  data->chosen_by_data = true;
  const mask::BlockRows& rows = *data->rows;
  mask::BlockRowsBuilder builder(rows.batches(), rows.heads(), rows.rows_per_plane());
  mask::RunList listed;
  for (std::int64_t b = 0; b < rows.batches(); ++b) {
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      for (std::int64_t row = 0; row < rows.rows_per_plane(); ++row) {
        listed.clear();
        for (const BlockRun& run : rows.row(rows.plane(b, h), row)) {
          const bool full = run.kind == BlockKind::kFull && data->separate_full_blocks;
          mask::append_run(listed, run.begin, run.end(),
                           full ? BlockKind::kFull : BlockKind::kPartial);
        }
        builder.add_row(listed);
      }
    }
  }
  data->rows = std::make_shared<const mask::BlockRows>(builder.finish());
  data_ = std::move(data);
}

std::int64_t BlockMask::plane(std::int64_t b, std::int64_t h) const {
  if (b < 0 || b >= data_->batch || h < 0 || h >= data_->heads) {
    fail(ErrorKind::index, "BlockMask", "batch {} and head {} are outside a mask of {} x {}", b, h,
         data_->batch, data_->heads);
  }
  return data_->rows->plane(b, h);
}

std::span<const BlockRun> BlockMask::runs(std::int64_t b, std::int64_t h,
                                          std::int64_t q_block) const {
  const std::int64_t of = plane(b, h);
  if (q_block < 0 || q_block >= data_->q_blocks) {
    fail(ErrorKind::index, "BlockMask", "query block {} is outside a mask of {}", q_block,
         data_->q_blocks);
  }
  return data_->rows->row(of, q_block);
}

BlockKind BlockMask::kind(std::int64_t b, std::int64_t h, std::int64_t q_block,
                          std::int64_t kv_block) const {
  const std::span<const BlockRun> row = runs(b, h, q_block);
  if (kv_block < 0 || kv_block >= data_->kv_blocks) {
    fail(ErrorKind::index, "BlockMask", "key block {} is outside a mask of {}", kv_block,
         data_->kv_blocks);
  }
  const auto after =
      std::upper_bound(row.begin(), row.end(), kv_block,
                       [](std::int64_t block, const BlockRun& run) { return block < run.end(); });
  return after != row.end() && after->begin <= kv_block ? after->kind : BlockKind::kEmpty;
}

bool BlockMask::same_blocks(const BlockMask& other) const {
  const BlockMaskData &a = *data_, &b = *other.data_;
  return a.shape == b.shape && a.q_begin == b.q_begin && a.block_size == b.block_size &&
         a.q_blocks == b.q_blocks && a.kv_blocks == b.kv_blocks &&
         a.separate_full_blocks == b.separate_full_blocks &&
         a.rows->same_picture(*b.rows, a.batch, a.heads);
}

bool operator==(const BlockMask& a, const BlockMask& b) {
  if (!a.same_blocks(b) || a.has_mask_mod() != b.has_mask_mod()) return false;
  return !a.has_mask_mod() || a.mask_mod().formula() == b.mask_mod().formula();
}

}  // namespace quire
