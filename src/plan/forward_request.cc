// Derives scale, score formula and layouts of dense tensors from a problem. Plan layer.
#include "plan/forward_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formula/simplify/simplify.h"
#include "kernels/attention_order.h"
#include "runtime/executor_of.h"

namespace quire::plan {
namespace {

static_assert(kernels::kMostHeadDim == 1024);  // AttentionProblem::most_dims

// 1 / sqrt(head_dim) if no scale is given; without channels there is nothing to scale.
double factor_of(const AttentionProblem& problem) {
  const auto channels = static_cast<double>(std::max<std::int64_t>(problem.head_dim, 1));
  const double exact = problem.scale.value_or(1 / std::sqrt(channels));
  return problem.is_f64() ? exact : static_cast<double>(static_cast<float>(exact));
}

// The weight of a score before the score mod.
Formula weight_formula(const AttentionProblem& problem) {
  const Formula& weight = problem.weight_mod->formula();
  if (!problem.score_mod.has_value()) return weight;
  const detail::ModArguments of = detail::mod_arguments();
  const ExprBase score =
      detail::apply(problem.score_mod->formula(), {of.score, of.b, of.h, of.q_idx, of.kv_idx});
  return Formula(detail::apply(weight, {score, of.b, of.h, of.q_idx, of.kv_idx}));
}

std::optional<Formula> score_of(const AttentionProblem& problem) {
  if (!problem.score_mod.has_value() && !problem.weight_mod.has_value()) return std::nullopt;
  const Formula all = problem.weight_mod ? weight_formula(problem) : problem.score_mod->formula();
  Formula simple = formula::simplify(all, problem.is_f64() ? Precision::kF64 : Precision::kF32);
  if (simple.graph()[simple.root()].op == Op::kScore) return std::nullopt;
  return simple;
}

}  // namespace

ForwardRequest::ForwardRequest(AttentionProblem&& problem)
    : AttentionProblem(std::move(problem)),
      factor(factor_of(*this)),
      score(score_of(*this)),
      held(executor_of(executor)) {
  executor = held.get();
  if (q_begin.empty()) q_begin = {0};
  if (queries == nullptr) queries = std::make_shared<layout::DenseQueries>(q_len);
  if (layout == nullptr) layout = std::make_shared<layout::DenseLayout>(kv_batch, kv_len);
}

}  // namespace quire::plan
