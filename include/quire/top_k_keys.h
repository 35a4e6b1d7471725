// top_k_keys: the indexer of sparse attention: for every query the keys with the largest weighted
// scores, as lists for AttentionOptions::key_indices. Public; attention layer.
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
  /// Keys that a query may choose from: a rule of (b, q_idx, kv_idx), with h = 0, or a block mask
  /// of one head; not both. By default all keys.
  std::optional<MaskMod> mask_mod = {};
  std::optional<BlockMask> block_mask = {};
  std::int64_t q_begin = 0;      // q_idx of the first query, for mask_mod; a block mask has its own
  Executor* executor = nullptr;  // default_executor() if null
};

/// The top_k keys with the largest sum over h of weights[b, q, h] * relu(q[b, q, h] . k[b, key]),
/// ties to the smaller key: i32 [B, L, top_k], ascending, padded with -1 where a query may see
/// fewer. A key whose sum is NaN is not listed. No gradient.
///
/// q [B, L, heads, D], k [B or 1, S, D], weights [B, L, heads]: f32, f64, bf16 or f16, any strides.
/// Computed in f32, or in f64 if any of them is f64; the bits of a sum depend only on its query,
/// key and weights. Scratch is proportional to top_k and the threads, never to S. Throws Error for
/// mismatched shapes and dtypes, and for faults of the rule. Thread safe.
QUIRE_API Tensor top_k_keys(const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& weights, std::int64_t top_k,
                            const TopKKeysOptions& options = {});

}  // namespace quire
