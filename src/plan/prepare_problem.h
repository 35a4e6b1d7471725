// Converts the rules of a checked problem to the form that plans read: lists of chosen keys, and
// proved masks. Plan layer.
#pragma once
#include "quire/attention_problem.h"

namespace quire::plan {

/// Reads and checks key_indices, and moves them into `chosen`.
void read_key_indices(AttentionProblem& problem);

/// Proves mask_mod, on the problem's executor, and moves it into block_mask: one mask for a dense
/// batch, otherwise one per sequence.
void prove_mask(AttentionProblem& problem);

}  // namespace quire::plan
