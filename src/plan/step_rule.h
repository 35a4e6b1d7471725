// What the queries of a step see, by positions and a rule, determined once for all layers. For
// steps over a KVCache and over the caller's pages. Plan layer.
#pragma once
#include <memory>
#include <optional>
#include <span>

#include "plan/step_keys.h"
#include "quire/attention_problem.h"

namespace quire::plan {

/// What positions and rule show together; at least one of them is given.
MaskMod step_program(const std::optional<PositionWindow>& positions, const MaskMod* rule);

/// Positions and rule together, as they are proved, and as kernels evaluate them where the proof
/// leaves a key undecided.
struct StepProgram {
  MaskMod proved, evaluated;
  RuleMemory* memory = nullptr;  // of earlier steps
};

/// Fills in the problem's `visible`, and `visible_rule` if it is needed, in place of mask_mod.
/// key_indices must have been read. Marks the sequences whose queries chose their keys.
std::shared_ptr<const StepKeys> set_visible_keys(AttentionProblem& problem,
                                                 std::span<StepSequence> sequences,
                                                 StepProgram program);

}  // namespace quire::plan
