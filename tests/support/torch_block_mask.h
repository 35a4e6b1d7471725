// The index tensors that torch's create_block_mask gives for a mask, by its own way: pad the dense
// mask with "hidden", count the visible elements of each block, sort. Independent of src/mask/.
// Tests only.
#pragma once
#include <optional>
#include <string>

#include "quire/block_mask.h"
#include "quire/tensor.h"

namespace quire::testing {

struct TorchBlockMask {
  Tensor kv_num_blocks, kv_indices;
  std::optional<Tensor> full_kv_num_blocks, full_kv_indices;
  Tensor q_num_blocks, q_indices;
  std::optional<Tensor> full_q_num_blocks, full_q_indices;
  Tensor dense;
};

/// dense: bool [batch, heads, q_len, kv_len].
TorchBlockMask torch_block_mask(const Tensor& dense, BlockSize block_size,
                                bool separate_full_blocks = true);

/// Where a mask's index tensors differ from torch's: "kv_indices differ: [1, 1, 2] i32 {0, 1} and
/// ..."; empty if they do not.
std::string difference(const BlockMask& mask, const TorchBlockMask& torch);

/// "[2] i32 {0, 1}"; "none" if there is no tensor.
std::string tensor_text(const std::optional<Tensor>& tensor);

}  // namespace quire::testing
