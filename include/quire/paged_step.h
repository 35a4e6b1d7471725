// paged_step: a step of an engine that has a cache of its own, as a problem: its page table and its
// pages in the place of a KVCache. Public; attention layer.
//
//   AttentionPlan plan(paged_step(q, keys, {.window = 4096}));      // once per step
//   plan.run(q_of_layer, k_pages, v_pages, {.out = out.view()});    // for every layer
#pragma once
#include "quire/attention_problem.h"
#include "quire/export.h"

namespace quire {

/// The queries of sequence i of q are the last tokens of sequence i of `keys`, and see what tokens
/// see in attend: themselves and those before them, or what options.window and mask_mod say; q_idx
/// is the position in the sequence. Bits are those of attend over a KVCache with the same keys. The
/// keys of the queries may be written after this and before the plan runs; page table and lengths
/// are read here, once. Throws Error as AttentionProblem::paged, and for more queries than keys,
/// block_mask, q_begin and sequence_options. No gradient.
QUIRE_API AttentionProblem paged_step(const Jagged& q, const PagedKeys& keys,
                                      const AttentionOptions& options,
                                      const char* function = "paged_step");

}  // namespace quire
