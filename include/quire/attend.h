// attend: attention of the newest tokens of many sequences over a KVCache. Public; attention layer.
//
//   cache.append(step);                               // pages for the step's tokens
//   AttendPlan plan(cache, step, {.q_heads = 32});    // once per step
//   for (layer ...) {
//     cache.write(layer, step, k, v);
//     plan.run(cache, layer, q, {.out = out});        // q [tokens, q_heads, head_dim]
//   }
//
// A step may mix decode, speculative tokens and prompt chunks. A token's result has the same bits
// as flex_attention over its sequence alone, whatever the batch, the pages and what sequences
// share. Where it pays, pages that several sequences begin with are read once for all of them.
#pragma once
#include <cstdint>
#include <span>

#include "quire/attention.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire {

/// In mods, b is the sequence's index in the step (or what `sequence_options` says); q_idx and
/// kv_idx are positions in the sequence (in a tree: on the path). Without a window, of the call or
/// the group, mask_mod alone decides what is visible, later tokens of the step included; otherwise
/// each token sees itself and earlier ones within the window, restricted by mask_mod. A rule is
/// proved once per plan; layers read only the keys it shows.
///
/// Where more layers follow, tokens of trees, and tokens that see later ones or whose rule reads b
/// or captured tables, become drafts: they can be found by prefix only after KVCache::commit.
using AttendOptions = AttentionOptions;
using AttendPlan = AttentionPlan;

/// q [tokens, q_heads, head_dim], any strides: the last `count` tokens of each sequence of `step`
/// (the list that append and write take; ids are ignored), sequence by sequence. Returns [tokens,
/// q_heads, v_head_dim] in q's dtype; lse and max_scores are [tokens, q_heads]. Throws Error,
/// before anything is computed, for a stale handle, a count that is negative or exceeds the
/// sequence, mismatched sizes, tokens not yet written in the layer, and a sequence with released
/// keys that some query could see; otherwise as flex_attention.
QUIRE_API Tensor attend(const KVCache& cache, std::int64_t layer, std::span<const NewTokens> step,
                        const ConstTensorView& q, const AttentionOptions& options = {});

}  // namespace quire
