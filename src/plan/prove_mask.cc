// Proves the rule of a problem for the sizes of its sequences. Plan layer.
#include <utility>
#include <vector>

#include "mask/sequence_masks.h"
#include "plan/prepare_problem.h"

namespace quire::plan {

void prove_mask(AttentionProblem& problem) {
  if (!problem.mask_mod.has_value()) return;
  const MaskMod& rule = *problem.mask_mod;
  const bool is_dense = problem.queries == nullptr && problem.layout == nullptr;
  if (is_dense && problem.q_begin.size() == 1) {
    problem.block_mask =
        create_block_mask(rule, problem.batch, problem.q_heads, problem.q_len, problem.kv_len,
                          {.q_begin = problem.q_begin[0], .executor = problem.executor});
    return problem.mask_mod.reset();
  }
  std::vector<std::int64_t> q_lengths, kv_lengths, begins;
  for (std::int64_t i = 0; i < problem.batch; ++i) {
    q_lengths.push_back(problem.queries_of(i));
    kv_lengths.push_back(problem.keys_of(i));
    begins.push_back(problem.begin_of(i));
  }
  mask::SequenceMasks made = mask::create_sequence_masks(
      problem.function, rule, problem.q_heads,
      {.q = q_lengths, .kv = kv_lengths, .q_begin = begins}, {.executor = problem.executor});
  problem.block_mask = JaggedBlockMask(rule, std::move(made.masks), std::move(made.which));
  problem.mask_mod.reset();
}

}  // namespace quire::plan
