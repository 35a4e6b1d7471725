// BlockMask::whole_mask_mod: blocks and mask mod as one formula. Mask layer.
#include <algorithm>

#include "mask/block_mask_data.h"
#include "mask/fill_planes.h"
#include "quire/block_mask.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"

namespace quire {

using namespace mask;

namespace {

// One bool per block, [batches, heads, q_blocks, kv_blocks] with the stored batches and heads:
// whether the block is full or, if not `full`, whether it is listed otherwise.
Buffer block_bools(const BlockMaskData& data, bool full, Executor* executor) {
  const BlockRows& rows = *data.rows;
  Tensor bools =
      Tensor::empty({rows.batches(), rows.heads(), data.q_blocks, data.kv_blocks}, DType::boolean);
  const std::int64_t width = data.kv_blocks;
  fill_planes(rows,
              {.data = bools.data(),
               .batch = rows.batches(),
               .heads = rows.heads(),
               .row_bytes = static_cast<std::size_t>(width)},
              executor, [&](std::span<const BlockRun> runs, void* out) {
                bool* row = static_cast<bool*>(out);
                std::fill_n(row, width, false);
                for (const BlockRun& run : runs) {
                  const bool is_full = data.separate_full_blocks && run.kind == BlockKind::kFull;
                  if (is_full == full) std::fill_n(row + run.begin, std::int64_t{run.length}, true);
                }
              });
  return Buffer(std::move(bools), {.name = full ? "full_blocks" : "partial_blocks"});
}

MaskMod is_in(const BlockMaskData& data, const Buffer& blocks) {
  const BlockRows& rows = *data.rows;
  return [&](auto b, auto h, auto q_idx, auto kv_idx) {
    const IntExpr first(ExprBase::literal(std::int64_t{0}));  // for an axis that is stored once
    const IntExpr row = data.q_begin == 0 ? q_idx : q_idx - data.q_begin;
    return blocks(rows.batches() > 1 ? b : first, rows.heads() > 1 ? h : first,
                  floor_div(row, data.block_size.q), floor_div(kv_idx, data.block_size.kv));
  };
}

}  // namespace

MaskMod BlockMask::whole_mask_mod(Executor* executor) const {
  const FloatEnv float_env;
  const MaskMod& rule = mask_mod();
  const BlockMaskData& data = *data_;
  if (!data.chosen_by_data) return rule;
  std::int64_t bytes = data.separate_full_blocks ? 2 : 1;
  for (const std::int64_t size :
       {data.rows->batches(), data.rows->heads(), data.q_blocks, data.kv_blocks})
    bytes = saturating_product(bytes, size);
  require_memory("BlockMask::whole_mask_mod", "a bool per block", bytes);
  MaskMod in_partial = is_in(data, block_bools(data, false, executor)) & rule;
  if (!data.separate_full_blocks) return in_partial;
  return is_in(data, block_bools(data, true, executor)) | in_partial;
}

}  // namespace quire
