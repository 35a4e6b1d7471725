// flex_attention: softmax(mod(q k^T * scale)) v over the keys a block mask leaves visible, in one
// fused pass over dense tensors. Jagged batches: jagged.h; pages: paged.h. Public; attention layer.
//
//   Tensor out = flex_attention(q, k, v, {.score_mod = alibi, .block_mask = mask});
#pragma once
#include "quire/attention.h"
#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

using FlexAttentionOptions = AttentionOptions;

/// q [B, Hq, L, E], k [Bkv, Hkv, S, E], v [Bkv, Hkv, S, Ev]: each f32, f64, bf16 or f16, any
/// strides. k and v may be quantised (quantize.h), which gives the bits of the call over their
/// dequantised values unless they are rotated. Bkv is B, or 1 with a mask of batch B or 1. Returns
/// [B, Hq, L, Ev] in q's dtype; lse and max_scores are [B, Hq, L]. Computed in f32, or in f64 if
/// any input is f64. A row that sees nothing gives 0. Thread safe. Throws Error for inconsistent
/// sizes, before anything is computed, and, naming buffer, index and size, for the first visible
/// element whose mod reads outside a buffer.
QUIRE_API Tensor flex_attention(const ConstTensorView& q, const KVView& k, const KVView& v,
                                const AttentionOptions& options = {});

}  // namespace quire
