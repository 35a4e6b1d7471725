// paged_step: the problem of one step of an engine that has its own cache: its page table and pages
// take the place of a KVCache. Public; attention layer.
//
//   AttentionPlan plan(paged_step(q, keys, {.window = 4096}));      // once per step
//   plan.run(q_of_layer, k_pages, v_pages, {.out = out.view()});    // for every layer
#pragma once
#include "quire/attention_problem.h"
#include "quire/export.h"

namespace quire {

/// The queries of sequence i of q are the last tokens of sequence i of `keys` and see what tokens
/// see in attend: themselves and earlier ones, or what options.window and mask_mod say; q_idx is
/// the position in the sequence. The bits are those of attend over a KVCache with the same keys.
/// The queries' own keys may be written any time before the plan runs; page table and lengths are
/// read here, once. Throws Error as AttentionProblem::paged, and for more queries than keys,
/// block_mask, q_begin and sequence_options. No gradient.
QUIRE_API AttentionProblem paged_step(const Jagged& q, const PagedKeys& keys,
                                      const AttentionOptions& options,
                                      const char* function = "paged_step");

}  // namespace quire
