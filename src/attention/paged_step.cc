// Makes the problem of a step over the caller's pages: an engine with its own cache plans the last
// tokens of its sequences from its page table. Attention layer.
#include "quire/paged_step.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/validate.h"
#include "plan/prepare_problem.h"
#include "plan/step_rule.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

AttentionProblem paged_step(const Jagged& q, const PagedKeys& keys, const AttentionOptions& options,
                            const char* function) {
  const FloatEnv float_env;
  attention::check_step_options(function, options);
  if (!options.sequence_options.empty()) {
    fail(ErrorKind::value, function,
         "sequence_options are for steps over a KVCache: they name sequences by its handles");
  }
  AttentionProblem problem = AttentionProblem::paged(q, keys, options, function);
  if (problem.kv_heads < 1 || problem.q_heads % problem.kv_heads != 0) {
    fail(ErrorKind::value, function, "q_heads must be a multiple of kv_heads; got {} and {}",
         problem.q_heads, problem.kv_heads);
  }
  attention::check_float(function, "q", problem.q_dtype);
  const MaskMod* const rule = options.mask_mod ? &*options.mask_mod : nullptr;
  std::optional<plan::PositionWindow> positions;
  if (rule == nullptr || options.window > 0) positions = {.window = options.window};
  std::vector<plan::StepSequence> sequences;
  sequences.reserve(static_cast<std::size_t>(problem.batch));
  for (std::int64_t i = 0; i < problem.batch; ++i) {
    const std::int64_t count = problem.queries_of(i), length = problem.keys_of(i);
    if (count > length) {
      fail(ErrorKind::value, function, "sequence {} of the step has {} tokens; got {} queries", i,
           length, count);
    }
    problem.q_begin.push_back(length - count);
    sequences.push_back({.q_begin = length - count,
                         .queries = count,
                         .length = length,
                         .b = i,
                         .positions = positions,
                         .rule = rule});
  }
  plan::read_key_indices(problem);
  // options.mask_mod, which sequences point to, outlives the call.
  const MaskMod program = plan::step_program(positions, rule);
  plan::set_visible_keys(problem, sequences, {.proved = program, .evaluated = program});
  return problem;
}

}  // namespace quire
