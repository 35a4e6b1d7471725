// top_k_keys: the indexer of attention over chosen keys: for every query the keys whose weighted
// scores are largest, as lists for AttentionOptions::key_indices. Public; attention layer.
#pragma once
#include <cstdint>
#include <optional>

#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

struct TopKKeysOptions {
  /// Keys that a query may choose from: a rule of (b, q_idx, kv_idx), h being 0, or a block mask of
  /// one head; not both. Without either, all keys.
  std::optional<MaskMod> mask_mod = {};
  std::optional<BlockMask> block_mask = {};
  std::int64_t q_begin = 0;  // q_idx of the first query, for mask_mod; a block mask brings its own
  Executor* executor = nullptr;  // default_executor() if null
};

/// The top_k keys with the largest sum over h of weights[b, q, h] * relu(q[b, q, h] . k[b, key]),
/// of equal ones the smaller key first: i32 [B, L, top_k], ascending, -1 behind the last where a
/// query may see fewer. A key whose sum is NaN is not listed. Has no gradient.
///
/// q [B, L, heads, D], k [B or 1, S, D], weights [B, L, heads]: f32, f64, bf16 or f16, any strides.
/// Computed in f32, f64 if one of them is; a sum's bits depend on its query, key and weights alone.
/// Scratch is in proportion to top_k and the threads, never to S. Throws Error for shapes and
/// dtypes that do not fit, and where the rule does something wrong. Safe from many threads.
QUIRE_API Tensor top_k_keys(const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& weights, std::int64_t top_k,
                            const TopKKeysOptions& options = {});

}  // namespace quire
