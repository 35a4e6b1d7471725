// Checks the options and rules of a step and derives what every query sees. Attention layer.
#include "attention/step_rules.h"

#include <utility>

#include "layout/chosen_keys.h"
#include "plan/choose_kernel.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"

namespace quire::attention {

using plan::PositionWindow;
using plan::StepSequence;

void check_step_options(const char* where, const AttentionOptions& options) {
  if (options.window < 0)
    fail(ErrorKind::value, where, "window must not be negative; got {}", options.window);
  if (options.block_mask.has_value())
    fail(ErrorKind::value, where, "a step has no block_mask; give mask_mod");
  if (!options.q_begin.empty())
    fail(ErrorKind::value, where, "q_begin follows from the cache; do not give it");
}

MaskMod step_program(const std::optional<PositionWindow>& positions, const MaskMod* rule) {
  if (!positions.has_value()) return *rule;
  MaskMod by_position = positions->window == 0 ? mods::causal()
                        : positions->sinks == 0
                            ? mods::sliding_window(positions->window)
                            : mods::streaming(positions->sinks, positions->window);
  return rule == nullptr ? by_position : by_position & *rule;
}

std::shared_ptr<const plan::StepKeys> write_down_keys(AttentionProblem& problem,
                                                      std::span<StepSequence> sequences,
                                                      StepProgram rule) {
  const std::int64_t group = problem.group();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    StepSequence& of = sequences[i];
    of.is_chosen = plan::kernel_of_sequence(problem.chosen.get(), static_cast<std::int64_t>(i),
                                            group, of.queries, of.length) == plan::Kernel::kChosen;
  }
  auto keys =
      std::make_shared<const plan::StepKeys>(sequences, plan::StepRule{.program = rule.program,
                                                                       .q_heads = problem.q_heads,
                                                                       .group = group,
                                                                       .executor = problem.executor,
                                                                       .memory = rule.memory});
  if (keys->asks()) problem.visible_rule = std::move(rule.asked);
  problem.visible = keys;
  problem.mask_mod.reset();
  problem.enable_gqa = true;
  return keys;
}

}  // namespace quire::attention
