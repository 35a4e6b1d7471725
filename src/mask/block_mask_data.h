// The data of a BlockMask, for the files that create and take apart masks. Plain data, never
// changed once a BlockMask shares it. Mask layer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "mask/block_rows.h"
#include "quire/block_mask.h"

namespace quire::mask {

/// The index tensors that from_kv_blocks was given: returned unchanged, order and tail included.
struct GivenLists {
  Tensor kv_num_blocks, kv_indices;
  std::optional<Tensor> full_kv_num_blocks, full_kv_indices;
  bool are_padded = false;  // returned with a column for every key block, padded with zeros
};

struct BlockMaskData {
  Shape shape;  // batch axes as given, then q_len, kv_len
  std::int64_t batch = 1, heads = 1;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t q_begin = 0;
  BlockSize block_size;
  // Usually the lengths in blocks, rounded up; index() keeps the lengths but removes rows.
  std::int64_t q_blocks = 0, kv_blocks = 0;
  bool separate_full_blocks = true;
  bool has_q_blocks = true;     // q_* tensors exist
  bool chosen_by_data = false;  // the mask mod alone does not say which blocks are empty or full
  std::optional<MaskMod> mask_mod;
  std::shared_ptr<const BlockRows> rows;
  std::optional<GivenLists> given;
};

}  // namespace quire::mask
