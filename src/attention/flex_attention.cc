// flex_attention, attend and AttentionPlan: a problem is checked, its mask proved, a plan made, and
// the plan run over tensors. A call over a pool of pages whose mask is recognised becomes one over
// the sequences' own pages. Attention layer.
#include "quire/flex_attention.h"

#include <optional>
#include <utility>

#include "attention/disjoint_outputs.h"
#include "attention/jagged_batch.h"
#include "attention/validate.h"
#include "cache/kv_cache_state.h"
#include "paged/paged_recognition.h"
#include "plan/cache_step.h"
#include "plan/finish_states.h"
#include "plan/forward_plan.h"
#include "plan/prepare_problem.h"
#include "quant/coded_view.h"
#include "quire/attend.h"
#include "quire/error.h"
#include "quire/jagged.h"
#include "quire/paged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

struct Forward {
  /// The problem has been validated.
  explicit Forward(AttentionProblem&& problem) : shape(problem) { make(std::move(problem)); }

  void make(AttentionProblem&& problem) {
    plan::prove_mask(problem);
    std::optional<paged::PagedCall> found = paged::recognise_paged(problem);
    if (found) problem = found->problem;
    plan = std::make_unique<plan::ForwardPlan>(std::move(problem));
    pages = std::move(found);
  }

  void run(const ConstTensorView& q, const KVView& k, const KVView& v,
           const AttentionOutputs& outputs);

  AttentionShape shape;                   // as given
  std::optional<paged::PagedCall> pages;  // if the mask was converted by a PagedAttention
  std::unique_ptr<plan::ForwardPlan> plan;
};

plan::KeyWeightsOutput key_weights_of(const AttentionProblem& problem,
                                      const AttentionOutputs& outputs) {
  const Shape& steps = outputs.key_weights->strides();
  plan::KeyWeightsOutput to{.data = outputs.key_weights->data(),
                            .queries = outputs.key_weights_queries};
  if (outputs.key_weights->rank() == 3) {
    to.batch_step = steps[0];
    to.head_step = steps[1];
    to.key_step = steps[2];
    return to;
  }
  const bool tokens_first = problem.k_order == JaggedOrder::kTokens;
  to.is_packed = true;
  to.key_step = steps[tokens_first ? 0 : 1];
  to.head_step = steps[tokens_first ? 1 : 0];
  return to;
}

void Forward::run(const ConstTensorView& q, const KVView& k, const KVView& v,
                  const AttentionOutputs& outputs) {
  const AttentionProblem* problem = &plan->request();
  attention::validate_run(*problem, q, k, v);
  attention::validate_outputs(*problem, outputs);
  if (outputs.states.has_value() && outputs.states->numel() == 0) return;  // no rows, or no splits
  if (pages.has_value() && !pages->is_unchanged()) {
    make(AttentionProblem(pages->given));
    problem = &plan->request();
  }
  plan::ForwardTensors tensors{
      .q = attention::four_axes(q, problem->q_order),
      .k = attention::four_axes(k.data, problem->k_order),
      .v = attention::four_axes(v.data, problem->v_order),
      .k_scales = quant::scales_of(k, attention::coded_axes(k, problem->k_order)),
      .v_scales = quant::scales_of(v, attention::coded_axes(v, problem->v_order)),
      .out = outputs.states ? TensorView() : attention::four_axes(outputs.out, problem->q_order),
      .lse = outputs.lse ? outputs.lse->data() : nullptr,
      .max_scores = outputs.max_scores ? outputs.max_scores->data() : nullptr,
      .stats_by_row = q.rank() == 3 && problem->q_order == JaggedOrder::kTokens,
      .entropy = outputs.entropy ? outputs.entropy->data() : nullptr,
      .states = outputs.states ? outputs.states->data() : nullptr,
      .resumes = outputs.resumes};
  if (outputs.states.has_value())
    tensors.state_rows = attention::state_rows(*problem, *outputs.states);
  if (outputs.key_weights.has_value()) {
    if (pages.has_value())
      fail(ErrorKind::not_implemented, problem->function,
           "a plan over converted pages has no key_weights; call flex_attention");
    tensors.key_weights = key_weights_of(*problem, outputs);
  }
  if (pages.has_value()) {
    for (ConstTensorView* one : {&tensors.k, &tensors.v, &tensors.k_scales, &tensors.v_scales})
      if (one->rank() == 4) *one = pages_of(*one, pages->page_size);
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
  attention::check(problem);
  state_ = std::make_unique<State>(std::move(problem));
}
AttentionPlan::AttentionPlan(const AttentionShape& shape, const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::dense(shape, options)) {}
AttentionPlan::AttentionPlan(const Jagged& q, const Jagged& k, const Jagged& v,
                             const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::jagged(q, k, v, options)) {}
AttentionPlan::AttentionPlan(const ConstTensorView& q, const PagedKeys& keys,
                             const AttentionOptions& options)
    : AttentionPlan(AttentionProblem::paged(q, keys, options)) {}
AttentionPlan::AttentionPlan(const Jagged& q, const PagedKeys& keys,
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

void AttentionPlan::run(const ConstTensorView& q, const KVView& k, const KVView& v,
                        const AttentionOutputs& outputs) {
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
  state_->run(q, cache.keys(layer), cache.values(layer), outputs);
}

void run_attention(AttentionProblem problem, const ConstTensorView& q, const KVView& k,
                   const KVView& v, const AttentionOutputs& outputs) {
  const FloatEnv float_env;
  problem.return_aux.key_weights = outputs.key_weights.has_value();
  attention::check(problem);
  attention::validate_outputs(problem, outputs);  // before planning for sizes that do not fit
  Forward(std::move(problem)).run(q, k, v, outputs);
}

Tensor run_attention(AttentionProblem problem, const ConstTensorView& q, const KVView& k,
                     const KVView& v) {
  const FloatEnv float_env;
  AuxOutput* const aux = problem.aux;
  const AuxRequest wanted = problem.return_aux;
  const bool wants_any = wanted.lse || wanted.max_scores || wanted.key_weights || wanted.entropy;
  if (wants_any && aux == nullptr) {
    fail(ErrorKind::value, problem.function,
         "return_aux asks for outputs, and aux, where to put them, is null");
  }
  const Shape out_shape = problem.out_shape(), rows = problem.stats_shape();
  const Shape keys = problem.key_weights_shape();
  attention::check(problem);
  Forward state(std::move(problem));
  // The run does not write holes of a jagged batch; without holes nothing has to be cleared.
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
  if (wanted.entropy) outputs.entropy = made.entropy.emplace(make(rows, wide)).view();
  if (wanted.key_weights) {
    outputs.key_weights = made.key_weights.emplace(keys, wide).view();  // 0 in holes
    outputs.key_weights_queries = wanted.key_weights_queries;
  }
  state.run(q, k, v, outputs);
  if (aux != nullptr) *aux = std::move(made);
  return out;
}

void finish_states(const AttentionProblem& given, std::span<const ConstTensorView> states,
                   const AttentionOutputs& outputs) {
  const FloatEnv float_env;
  AttentionProblem problem = given;
  problem.states = KeptStates::kNone;
  attention::validate_outputs(problem, outputs);
  problem.states = KeptStates::kRunning;
  for (const ConstTensorView& one : states) {
    attention::validate_states(problem, one);
    if (!one.is_contiguous()) fail(ErrorKind::value, problem.function, "states must be row-major");
  }
  const plan::ForwardRequest request(std::move(problem));
  plan::finish_states(
      request, states,
      {.out = attention::four_axes(outputs.out, request.q_order),
       .lse = outputs.lse ? outputs.lse->data() : nullptr,
       .max_scores = outputs.max_scores ? outputs.max_scores->data() : nullptr,
       .stats_by_row = request.q_shape.rank() == 3 && request.q_order == JaggedOrder::kTokens});
}

Tensor flex_attention(const ConstTensorView& q, const KVView& k, const KVView& v,
                      const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::dense(q, k, v, options), q, k, v);
}

Tensor flex_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                      const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::jagged(q, k, v, options), q.values, k.view(), v.view());
}

Tensor flex_attention(const ConstTensorView& q, const PagedKeys& keys,
                      const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::paged(q, keys, options), q, keys.k, keys.v);
}

Tensor flex_attention(const Jagged& q, const PagedKeys& keys, const AttentionOptions& options) {
  const FloatEnv float_env;
  return run_attention(AttentionProblem::paged(q, keys, options), q.values, keys.k, keys.v);
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
  return run_attention(std::move(problem), q, cache.keys(layer), cache.values(layer));
}

}  // namespace quire
