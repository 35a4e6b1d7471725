// flex_attention over jagged batches: sequences of different lengths packed one after the other
// without padding. Sequences never see one another: each has its own keys. Public; attention layer.
//
//   Jagged q{q_values, offsets}, k{k_values, offsets}, v{v_values, offsets};
//   Tensor out = flex_attention(q, k, v, {.mask_mod = mods::causal()});
//
// In mods b is the number of the sequence, and q_idx and kv_idx count inside it. A sequence's
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

/// By proof, each sequence for itself (torch: create_nested_block_mask). `heads` as of
/// create_block_mask. q and kv give offsets and lengths; their values are not read. q_begin,
/// max_bytes and report of the options are not used. Throws Error as create_block_mask does, and
/// for offsets and lengths that are wrong, naming the sequence.
QUIRE_API JaggedBlockMask create_jagged_block_mask(const MaskMod& mask_mod, std::int64_t heads,
                                                   const Jagged& q, const Jagged& kv,
                                                   const BlockMaskOptions& options = {});

using JaggedAttentionOptions = AttentionOptions;
using JaggedAttentionPlan = AttentionPlan;

/// q, k and v: n sequences each, k and v of the same lengths; heads, dims and dtypes as of
/// flex_attention. Returns values in q's order and dtype with as many tokens as q's; holes are 0.
/// lse and max_scores: [total, heads], or [heads, total], as q's order. A sequence without keys
/// gives 0. Throws Error, naming the sequence, for offsets that fall, end beyond the values or are
/// negative, lengths that do not fit their slot, another dtype or rank, and numbers of sequences
/// that differ; else as flex_attention.
QUIRE_API Tensor flex_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                const AttentionOptions& options = {});

}  // namespace quire
