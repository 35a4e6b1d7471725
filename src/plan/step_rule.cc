// Joins positions and rule into one mask mod, and determines what a step's queries see. Plan layer.
#include "plan/step_rule.h"

#include <utility>

#include "layout/chosen_keys.h"
#include "plan/choose_kernel.h"
#include "quire/mods.h"

namespace quire::plan {

MaskMod step_program(const std::optional<PositionWindow>& positions, const MaskMod* rule) {
  if (!positions.has_value()) return *rule;
  MaskMod by_position = positions->window == 0 ? mods::causal()
                        : positions->sinks == 0
                            ? mods::sliding_window(positions->window)
                            : mods::streaming(positions->sinks, positions->window);
  return rule == nullptr ? by_position : by_position & *rule;
}

std::shared_ptr<const StepKeys> set_visible_keys(AttentionProblem& problem,
                                                 std::span<StepSequence> sequences,
                                                 StepProgram program) {
  const std::int64_t group = problem.group();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    StepSequence& of = sequences[i];
    of.is_chosen = kernel_of_sequence(problem, static_cast<std::int64_t>(i), of.queries,
                                      of.length) == Kernel::kChosen;
  }
  auto keys = std::make_shared<const StepKeys>(sequences, StepRule{.program = program.proved,
                                                                   .q_heads = problem.q_heads,
                                                                   .group = group,
                                                                   .executor = problem.executor,
                                                                   .memory = program.memory});
  if (keys->asks()) problem.visible_rule = std::move(program.evaluated);
  problem.visible = keys;
  problem.mask_mod.reset();
  problem.enable_gqa = true;
  return keys;
}

}  // namespace quire::plan
