// flex_attention over jagged batches: sequences of different lengths packed one after the other
// without padding. Sequences never see one another: each has its own keys. Public; attention layer.
//
//   Jagged q{q_values, offsets}, k{k_values, offsets}, v{v_values, offsets};
//   Tensor out = flex_attention(q, k, v, {.mask_mod = mods::causal()});
//
// In mods, b is the index of the sequence, and q_idx and kv_idx count inside it. A sequence's
// result has the bits of flex_attention over that sequence alone.
#pragma once
#include <cstdint>

#include "quire/attention.h"
#include "quire/block_mask.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

/// Proves the mask of each sequence on its own (torch: create_nested_block_mask). `heads` as for
/// create_block_mask. Only offsets and lengths of q and kv are read, not their values. q_begin,
/// max_bytes and report of the options are ignored. Throws Error as create_block_mask does and,
/// naming the sequence, for wrong offsets and lengths.
QUIRE_API JaggedBlockMask create_jagged_block_mask(const MaskMod& mask_mod, std::int64_t heads,
                                                   const Jagged& q, const Jagged& kv,
                                                   const BlockMaskOptions& options = {});

using JaggedAttentionOptions = AttentionOptions;
using JaggedAttentionPlan = AttentionPlan;

/// q, k and v have n sequences each, k and v of the same lengths; heads, dims and dtypes as for
/// flex_attention. Returns values in q's order and dtype with as many tokens as q; holes are 0. lse
/// and max_scores: [total, heads] or [heads, total], in q's order. A sequence without keys gives 0.
/// Throws Error, naming the sequence, for offsets that decrease, exceed the values or are negative,
/// lengths that exceed their slot, another dtype or rank, and different numbers of sequences;
/// otherwise as flex_attention.
QUIRE_API Tensor flex_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                const AttentionOptions& options = {});

}  // namespace quire
