// ForwardRequest: the AttentionProblem a plan holds, with what both passes derive from it. The
// problem has been validated. Plan layer.
#pragma once
#include <memory>
#include <optional>

#include "kernels/decode/decode.h"
#include "layout/key_layout.h"
#include "layout/query_layout.h"
#include "quire/attention_problem.h"
#include "quire/executor.h"
#include "quire/formula.h"

namespace quire::plan {

struct ForwardRequest : AttentionProblem {
  ForwardRequest() = default;
  /// Fills in layouts of dense tensors, q_begin and the executor, simplifies the score mod.
  explicit ForwardRequest(AttentionProblem&& problem);

  double factor = 1;  // the scale, rounded to the compute type
  /// The score mod followed by the weight mod, simplified; nothing if the result is the score
  /// itself.
  std::optional<Formula> score = {};
  /// kernels::most_decode_rows of the call; a plan sets it.
  std::int64_t decode_rows = kernels::kDecodeRows;
  std::shared_ptr<Executor> held = {};  // shares ownership of the default executor
};

}  // namespace quire::plan
