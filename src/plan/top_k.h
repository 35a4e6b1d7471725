// How top_k_keys is computed: tasks for threads, the mask in the form that the kernel reads,
// scratch. Plan layer.
#pragma once
#include <cstdint>
#include <optional>

#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/tensor.h"
#include "quire/tensor_view.h"

namespace quire::plan {

/// A call of top_k_keys (quire/top_k_keys.h), checked.
struct TopKProblem {
  ConstTensorView q, k, weights;  // [B, L, heads, D], [B or 1, S, D], [B, L, heads]
  std::int64_t top_k = 1;
  std::optional<BlockMask> mask = {};
  Executor* executor = nullptr;
};

/// i32 [B, L, top_k]. Throws the Error of the first visible element of the mask's rule with a
/// fault.
Tensor top_k(const TopKProblem& problem);

}  // namespace quire::plan
