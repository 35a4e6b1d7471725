// attend: attention of the newest tokens of many sequences over a KVCache. Public; attention layer.
//
//   cache.append(step);                               // pages for the step's tokens
//   AttendPlan plan(cache, step, {.q_heads = 32});    // once per step
//   for (layer ...) {
//     cache.write(layer, step, k, v);
//     plan.run(cache, layer, q, {.out = out});        // q [tokens, q_heads, head_dim]
//   }
//
// Any mix of decode, speculative tokens and chunks of prompts in one step. A token's result has the
// bits of flex_attention over its sequence alone, whatever the batch, the pages and what sequences
// share. Sequences that begin with the same pages read them once for several where that pays.
#pragma once
#include <cstdint>
#include <span>

#include "quire/attention.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire {

/// In mods b is the number of the sequence in the step (or what `sequence_options` says), q_idx and
/// kv_idx are positions in the sequence; in a tree, on the path. Without a window, of call or
/// group, mask_mod alone says what is visible, later tokens of the same step included; else each
/// token sees itself and those before it, within the window, and of these what mask_mod shows. A
/// rule is proved once per plan for the queries of the step: layers read the keys it shows.
///
/// Tokens that see later ones, or whose rule reads b or captured tables, and trees, are drafts
/// afterwards where more layers follow: KVCache::commit says that they may be found by prefix.
using AttendOptions = AttentionOptions;
using AttendPlan = AttentionPlan;

/// q [tokens, q_heads, head_dim], any strides: the last `count` tokens of each sequence of `step`
/// (the list append and write take; ids do not matter), one sequence after the other. Returns
/// [tokens, q_heads, v_head_dim] in q's dtype; lse and max_scores are [tokens, q_heads]. Throws
/// Error, before anything is computed, for a stale handle, a count that is negative or more than
/// the sequence has, sizes that do not fit, tokens that are not written in the layer, and for a
/// sequence whose released keys are not hidden from every query; else as flex_attention.
QUIRE_API Tensor attend(const KVCache& cache, std::int64_t layer, std::span<const NewTokens> step,
                        const ConstTensorView& q, const AttentionOptions& options = {});

}  // namespace quire
