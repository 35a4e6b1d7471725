// evaluate: applies a mod to a whole tensor of scores, or writes out a mask, with the same tile
// programs the attention kernels use. For inspection, tests and small masks; attention itself never
// stores the scores. Public; formula layer.
#pragma once
#include <cstdint>

#include "quire/executor.h"
#include "quire/export.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

struct EvaluateOptions {
  std::int64_t q_begin = 0;      // q_idx of the first row
  std::int64_t kv_begin = 0;     // kv_idx of the first column
  Executor* executor = nullptr;  // default_executor() if null
};

/// scores: f32 or f64 [B, H, q_len, kv_len], any strides; the result has the same shape and dtype.
/// Throws Error for another dtype or rank, for a buffer without data and, naming buffer, index and
/// size, for the first element (in the order b, h, q_idx, kv_idx) that reads outside a buffer or
/// divides an integer by zero. Same bits for any ISA (f32) and executor.
QUIRE_API Tensor evaluate(const ScoreMod& mod, ConstTensorView scores,
                          const EvaluateOptions& options = {});

/// The mask as bools of the given shape [B, H, q_len, kv_len]. Throws as above.
QUIRE_API Tensor evaluate(const MaskMod& mod, const Shape& shape,
                          const EvaluateOptions& options = {});

}  // namespace quire
