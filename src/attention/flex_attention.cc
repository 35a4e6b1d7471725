// flex_attention, attend and AttentionPlan: a problem is checked, its mask proved, a plan made, and
// the plan run over tensors. A call over a pool of pages whose mask is recognised becomes one over
// the sequences' own pages. Attention layer.
#include "quire/flex_attention.h"

#include <optional>
#include <utility>

#include "attention/cache_step.h"
#include "attention/disjoint_outputs.h"
#include "attention/jagged_batch.h"
#include "attention/validate.h"
#include "cache/kv_cache_state.h"
#include "paged/paged_recognition.h"
#include "plan/forward_plan.h"
#include "quire/attend.h"
#include "quire/error.h"
#include "quire/jagged.h"
#include "quire/paged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

struct Forward {
  /// The problem is checked.
  explicit Forward(AttentionProblem problem) : shape(problem) { make(std::move(problem)); }

  void make(AttentionProblem problem) {
    attention::prove_mask(problem);
    std::optional<paged::PagedCall> found = paged::recognise_paged(problem);
    plan = std::make_unique<plan::ForwardPlan>(found ? found->problem : std::move(problem));
    pages = std::move(found);
  }

  void run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           const AttentionOutputs& outputs);

  AttentionShape shape;                   // as given
  std::optional<paged::PagedCall> pages;  // if the mask was converted by a PagedAttention
  std::unique_ptr<plan::ForwardPlan> plan;
};

void Forward::run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  const AttentionOutputs& outputs) {
  const AttentionProblem* problem = &plan->request();
  attention::validate_run(*problem, q, k, v);
  attention::validate_outputs(*problem, outputs);
  if (pages.has_value() && !pages->is_unchanged()) {
    make(AttentionProblem(pages->given));
    problem = &plan->request();
  }
  plan::ForwardTensors tensors{
      .q = attention::four_axes(q, problem->q_order),
      .k = attention::four_axes(k, problem->k_order),
      .v = attention::four_axes(v, problem->v_order),
      .out = attention::four_axes(outputs.out, problem->q_order),
      .lse = outputs.lse ? outputs.lse->data() : nullptr,
      .max_scores = outputs.max_scores ? outputs.max_scores->data() : nullptr,
      .stats_by_row = q.rank() == 3 && problem->q_order == JaggedOrder::kTokens};
  if (pages.has_value()) {
    tensors.k = pages_of(k, pages->page_size);
    tensors.v = pages_of(v, pages->page_size);
  }
  attention::validate_disjoint(problem->function, tensors, outputs, plan->buffers());
  plan->run(tensors);
}

}  // namespace

struct AttentionPlan::State : Forward {
  using Forward::Forward;
};

AttentionPlan::AttentionPlan(AttentionProblem problem) {
  const FloatEnv float_env;
  state_ = std::make_unique<State>(attention::checked(std::move(problem)));
}
AttentionPlan::AttentionPlan(const AttentionShape& shape, const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::dense(shape, options)) {}
AttentionPlan::AttentionPlan(const Jagged& q, const Jagged& k, const Jagged& v,
                             const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::jagged(q, k, v, options)) {}
AttentionPlan::AttentionPlan(const ConstTensorView& q, const PagedKeys& keys,
                             const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::paged(q, keys, options)) {}
AttentionPlan::AttentionPlan(const KVCache& cache, std::span<const NewTokens> step,
                             const AttendQueries& queries, const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::step(cache, step, queries, options)) {}
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

const AttentionShape& AttentionPlan::shape() const { return state_->shape; }
std::int64_t AttentionPlan::tokens() const { return state_->plan->queries(); }
std::size_t AttentionPlan::scratch_bytes() const { return state_->plan->scratch_bytes(); }
bool AttentionPlan::is_paged() const { return state_->pages.has_value(); }

void AttentionPlan::run(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const AttentionOutputs& outputs) {
  const FloatEnv float_env;
  state_->run(q, k, v, outputs);
}

void AttentionPlan::run(const KVCache& cache, std::int64_t layer, const ConstTensorView& q,
                        const AttentionOutputs& outputs) {
  const FloatEnv float_env;
  const AttentionProblem& problem = state_->plan->request();
  if (problem.step_of == nullptr)
    fail(ErrorKind::value, problem.function, "the plan was not made for a step over a cache");
  problem.step_of->check(problem.function, cache, layer);
  problem.step_of->mark_drafts(cache, layer);
  state_->run(q, cache.k_pages(layer), cache.v_pages(layer), outputs);
}

void run_attention(AttentionProblem problem, const ConstTensorView& q, const ConstTensorView& k,
                   const ConstTensorView& v, const AttentionOutputs& outputs) {
  const FloatEnv float_env;
  problem = attention::checked(std::move(problem));
  attention::validate_outputs(problem, outputs);  // before a plan is made of sizes that do not fit
  Forward(std::move(problem)).run(q, k, v, outputs);
}

Tensor run_attention(AttentionProblem problem, const ConstTensorView& q, const ConstTensorView& k,
                     const ConstTensorView& v) {
  const FloatEnv float_env;
  AuxOutput* const aux = problem.aux;
  const AuxRequest wanted = problem.return_aux;
  if ((wanted.lse || wanted.max_scores) && aux == nullptr) {
    fail(ErrorKind::value, problem.function,
         "return_aux asks for outputs, and aux, where to put them, is null");
  }
  const Shape out_shape = problem.out_shape(), rows = problem.stats_shape();
  Forward state(attention::checked(std::move(problem)));
  // Holes of a jagged batch are not written by the run. Without any nothing need be cleared.
  const auto make = [&](const Shape& shape, DType dtype) {
    const bool has_holes =
        q.rank() == 3 && state.plan->queries() * state.shape.q_heads != element_count(rows);
    return has_holes ? Tensor(shape, dtype) : Tensor::empty(shape, dtype);
  };
  Tensor out = make(out_shape, state.shape.q_dtype);
  AttentionOutputs outputs{.out = out.view()};
  AuxOutput made;
  const DType wide = state.shape.compute_type();
  if (wanted.lse) outputs.lse = made.lse.emplace(make(rows, wide)).view();
  if (wanted.max_scores) outputs.max_scores = made.max_scores.emplace(make(rows, wide)).view();
  state.run(q, k, v, outputs);
  if (aux != nullptr) *aux = std::move(made);
  return out;
}

Tensor flex_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::dense(q, k, v, options), q, k, v);
}

Tensor flex_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                      const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::jagged(q, k, v, options), q.values, k.values, v.values);
}

Tensor flex_attention(const ConstTensorView& q, const PagedKeys& keys,
                      const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::paged(q, keys, options), q, keys.k, keys.v);
}

Tensor attend(const KVCache& cache, std::int64_t layer, std::span<const NewTokens> step,
              const ConstTensorView& q, const AttentionOptions& options) {
  const FloatEnv float_env;
  if (q.rank() != 3) {
    fail(ErrorKind::value, "attend", "q must be [tokens, q_heads, head_dim]; got {}",
         to_string(q.shape()));
  }
  const auto group = static_cast<std::int64_t>(cache.state().place("attend", layer).group);
  const AttendQueries queries{.q_heads = q.dim(1), .dtype = q.dtype(), .group = group};
  AttentionProblem problem = AttentionProblem::step(cache, step, queries, options);
  problem.step_of->check("attend", cache, layer);
  problem.step_of->mark_drafts(cache, layer);
  return run_attention(std::move(problem), q, cache.k_pages(layer), cache.v_pages(layer));
}

}  // namespace quire
