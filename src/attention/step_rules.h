// What steps over a KVCache and over the caller's pages share: their options, and what their
// queries see, determined once for all layers. Attention layer.
#pragma once
#include <memory>
#include <optional>
#include <span>

#include "plan/step_keys.h"
#include "quire/attention_problem.h"

namespace quire::attention {

/// Throws Error for a negative window, a block mask and a q_begin.
void check_step_options(const char* where, const AttentionOptions& options);

/// What positions and rule show together; one of them is given.
MaskMod step_program(const std::optional<plan::PositionWindow>& positions, const MaskMod* rule);

/// What positions and rule show together, as it is proved and as it is asked where that does not
/// decide.
struct StepProgram {
  MaskMod program, asked;
  plan::RuleMemory* memory = nullptr;  // of earlier steps
};

/// Fills in what the problem's queries see: `visible` instead of mask_mod, and what is asked.
/// key_indices of the problem were read.
std::shared_ptr<const plan::StepKeys> write_down_keys(AttentionProblem& problem,
                                                      std::span<plan::StepSequence> sequences,
                                                      StepProgram rule);

}  // namespace quire::attention
