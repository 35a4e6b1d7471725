// flex_attention_backward and AttentionBackwardPlan: a problem is checked, its mask proved, a plan
// made, and the plan run over tensors. As in the forward pass, a call over a pool of pages with a
// converted mask becomes one over the sequences' own pages. Attention layer.
#include "quire/flex_attention_backward.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention/disjoint_outputs.h"
#include "attention/jagged_batch.h"
#include "attention/validate.h"
#include "paged/paged_recognition.h"
#include "plan/backward_plan.h"
#include "plan/prepare_problem.h"
#include "quire/error.h"
#include "quire/paged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

void add_buffers(const Formula& formula, std::vector<Buffer>& to) {
  for (const Buffer& buffer : formula.buffers()) {
    const auto is_same = [&](const Buffer& known) { return known.is_same(buffer); };
    if (buffer.wants_gradient() && std::none_of(to.begin(), to.end(), is_same))
      to.push_back(buffer);
  }
}

// The forward's checks, and a check for what the backward pass does not support.
void check(AttentionProblem& problem) {
  attention::check(problem);
  if (problem.visible != nullptr)
    fail(ErrorKind::not_implemented, problem.function, "a step over a cache has no gradients");
}

void clear(const TensorView& view) {
  const std::size_t size = dtype_size(view.dtype());
  if (view.is_contiguous()) {
    std::memset(view.data(), 0, static_cast<std::size_t>(view.numel()) * size);
    return;
  }
  for (std::int64_t i = 0; i < view.dim(0); ++i) clear(view.select(0, i));
}

// Whether some row of a jagged batch belongs to no sequence: the run does not write such rows.
bool has_holes(const AttentionProblem& problem) {
  if (problem.q_shape.rank() != 3) return false;
  const auto total = [](const Shape& shape, JaggedOrder order) {
    return shape[order == JaggedOrder::kTokens ? 0 : 1];
  };
  std::int64_t queries = 0, keys = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    queries += problem.queries_of(b);
    keys += problem.keys_of(b);
  }
  return queries != total(problem.q_shape, problem.q_order) ||
         keys != total(problem.k_shape, problem.k_order) ||
         keys != total(problem.v_shape, problem.v_order);
}

// Gradients pass through numbers: codes are replaced by what they decode to, and get no gradient.
AttentionProblem without_codes(AttentionProblem problem, const WantedGradients& wanted) {
  const auto check = [&](const char* name, bool is_wanted, const KVFormat& format) {
    if (format.is_plain() || !is_wanted) return;
    fail(ErrorKind::not_implemented, problem.function,
         "{} is quantised ({}) and has no gradient; ask for that of q alone", name, format.name());
  };
  check("key", wanted.k, problem.k_format);
  check("value", wanted.v, problem.v_format);
  problem.k_format = problem.v_format = {};
  return problem;
}

struct Backward {
  /// The problem has been validated.
  Backward(AttentionProblem problem, const WantedGradients& gradients)
      : shape(problem), wanted(gradients) {
    make(without_codes(std::move(problem), wanted));
  }

  void make(AttentionProblem problem) {
    std::vector<Buffer> buffers;
    if (wanted.buffers) buffers = gradient_buffers(problem);
    plan::prove_mask(problem);
    std::optional<paged::PagedCall> found = paged::recognise_paged(problem);
    plan = std::make_unique<plan::BackwardPlan>(plan::BackwardRequest(
        found ? found->problem : std::move(problem), wanted, std::move(buffers)));
    pages = std::move(found);
  }

  void run(const BackwardInputs& inputs, const GradientOutputs& outputs);

  AttentionShape shape;  // as given
  WantedGradients wanted;
  std::optional<paged::PagedCall> pages;  // if the mask was converted by a PagedAttention
  std::unique_ptr<plan::BackwardPlan> plan;
};

void Backward::run(const BackwardInputs& inputs, const GradientOutputs& outputs) {
  if (pages.has_value() && !pages->is_unchanged()) make(AttentionProblem(pages->given));
  const AttentionProblem& problem = plan->forward();
  if (!inputs.k.format.is_plain() || !inputs.v.format.is_plain()) {
    AttentionProblem coded = problem;
    coded.k_format = shape.k_format;
    coded.v_format = shape.v_format;
    attention::validate_run(coded, inputs.q, inputs.k, inputs.v);
    const auto decoded = [&](const KVView& view, JaggedOrder order) {
      return dequantize(view, view.dtype(), attention::coded_axes(view, order).head,
                        problem.executor);
    };
    BackwardInputs numbers = inputs;
    const Tensor k = decoded(inputs.k, problem.k_order), v = decoded(inputs.v, problem.v_order);
    numbers.k = k;
    numbers.v = v;
    return run(numbers, outputs);
  }
  attention::validate_run(problem, inputs.q, inputs.k, inputs.v);
  attention::validate_loss(problem, inputs);
  attention::validate_gradients(problem, plan->wanted(), plan->buffers(), outputs);
  attention::validate_disjoint(problem.function, inputs, outputs, plan->buffers());
  const auto of = [](const auto& view, JaggedOrder order) {
    return view.has_value() ? std::optional(attention::four_axes(*view, order)) : std::nullopt;
  };
  // One number per row: [total, heads] or [heads, total].
  const auto numbers = [&](const ConstTensorView& view) {
    if (view.rank() != 2) return view;
    return (problem.q_order == JaggedOrder::kTokens ? view.transpose(0, 1) : view).unsqueeze(0);
  };
  plan::BackwardTensors tensors{.q = attention::four_axes(inputs.q, problem.q_order),
                                .k = attention::four_axes(inputs.k.data, problem.k_order),
                                .v = attention::four_axes(inputs.v.data, problem.v_order),
                                .lse = numbers(inputs.lse),
                                .d_out = of(inputs.d_out, problem.q_order),
                                .d_q = of(outputs.q, problem.q_order),
                                .d_k = of(outputs.k, problem.k_order),
                                .d_v = of(outputs.v, problem.v_order),
                                .d_buffers = outputs.buffers};
  if (inputs.d_out.has_value()) tensors.out = attention::four_axes(inputs.out, problem.q_order);
  if (inputs.d_lse.has_value()) tensors.d_lse = numbers(*inputs.d_lse);
  if (has_holes(problem)) {
    for (const std::optional<TensorView>& one : {outputs.q, outputs.k, outputs.v})
      if (one.has_value()) clear(*one);
  }
  if (pages.has_value()) {
    tensors.k = pages_of(inputs.k.data, pages->page_size);
    tensors.v = pages_of(inputs.v.data, pages->page_size);
    if (outputs.k.has_value()) tensors.d_k = pages_of(*outputs.k, pages->page_size);
    if (outputs.v.has_value()) tensors.d_v = pages_of(*outputs.v, pages->page_size);
  }
  plan->run(tensors);
}

}  // namespace

struct AttentionBackwardPlan::State : Backward {
  using Backward::Backward;
};

AttentionBackwardPlan::AttentionBackwardPlan(AttentionProblem problem,
                                             const WantedGradients& wanted) {
  const FloatEnv float_env;
  check(problem);
  state_ = std::make_unique<State>(std::move(problem), wanted);
}
AttentionBackwardPlan::AttentionBackwardPlan(const AttentionShape& shape,
                                             const AttentionBackwardOptions& options)
    : AttentionBackwardPlan(
          AttentionProblem::dense(shape, options.forward, "flex_attention_backward"),
          options.wanted) {}
AttentionBackwardPlan::AttentionBackwardPlan(AttentionBackwardPlan&&) noexcept = default;
AttentionBackwardPlan& AttentionBackwardPlan::operator=(AttentionBackwardPlan&&) noexcept = default;
AttentionBackwardPlan::~AttentionBackwardPlan() = default;

const AttentionShape& AttentionBackwardPlan::shape() const { return state_->shape; }
const std::vector<Buffer>& AttentionBackwardPlan::buffers() const {
  return state_->plan->buffers();
}
std::size_t AttentionBackwardPlan::scratch_bytes() const { return state_->plan->scratch_bytes(); }

void AttentionBackwardPlan::run(const BackwardInputs& inputs, const GradientOutputs& outputs) {
  const FloatEnv float_env;
  state_->run(inputs, outputs);
}

const Tensor& AttentionGradients::of(const std::string& buffer) const {
  for (const BufferGradient& known : buffers)
    if (known.buffer.name() == buffer) return known.gradient;
  fail(ErrorKind::value, "flex_attention_backward", "there is no gradient of a buffer '{}'",
       buffer);
}

std::vector<Buffer> gradient_buffers(const AttentionProblem& problem) {
  std::vector<Buffer> buffers;
  if (problem.score_mod.has_value()) add_buffers(problem.score_mod->formula(), buffers);
  if (problem.weight_mod.has_value()) add_buffers(problem.weight_mod->formula(), buffers);
  if (const MaskMod* rule = problem.rule()) add_buffers(rule->formula(), buffers);
  // Has a sum of its own, even if a mod reads the same buffer.
  if (problem.sinks && problem.sinks->wants_gradient()) buffers.push_back(*problem.sinks);
  return buffers;
}

void run_attention_backward(AttentionProblem problem, const BackwardInputs& inputs,
                            const GradientOutputs& outputs) {
  const FloatEnv float_env;
  check(problem);
  const WantedGradients wanted{.q = outputs.q.has_value(),
                               .k = outputs.k.has_value(),
                               .v = outputs.v.has_value(),
                               .buffers = !outputs.buffers.empty()};
  // Checked before planning for sizes that do not fit.
  attention::validate_run(problem, inputs.q, inputs.k, inputs.v);
  attention::validate_loss(problem, inputs);
  Backward(std::move(problem), wanted).run(inputs, outputs);
}

AttentionGradients run_attention_backward(AttentionProblem problem, const BackwardInputs& inputs,
                                          const WantedGradients& wanted) {
  const FloatEnv float_env;
  check(problem);
  attention::validate_run(problem, inputs.q, inputs.k, inputs.v);
  attention::validate_loss(problem, inputs);
  Backward state(std::move(problem), wanted);
  AttentionGradients made;
  GradientOutputs outputs;
  const auto make = [](bool is_wanted, const KVView& like, std::optional<Tensor>& to,
                       std::optional<TensorView>& view) {
    if (is_wanted) view = to.emplace(Tensor::empty(like.shape(), like.dtype())).view();
  };
  make(wanted.q, inputs.q, made.q, outputs.q);
  make(wanted.k, inputs.k, made.k, outputs.k);
  make(wanted.v, inputs.v, made.v, outputs.v);
  std::vector<TensorView> buffers;
  for (const Buffer& buffer : state.plan->buffers()) {
    made.buffers.push_back({buffer, Tensor(buffer.shape(), buffer.dtype())});
    buffers.push_back(made.buffers.back().gradient.view());
  }
  outputs.buffers = buffers;
  state.run(inputs, outputs);
  return made;
}

AttentionGradients flex_attention_backward(const BackwardInputs& inputs,
                                           const AttentionBackwardOptions& options) {
  const FloatEnv float_env;
  return run_attention_backward(AttentionProblem::dense(inputs.q, inputs.k, inputs.v,
                                                        options.forward, "flex_attention_backward"),
                                inputs, options.wanted);
}

AttentionGradients detail::jagged_backward(const JaggedBackwardInputs& inputs,
                                           const AttentionBackwardOptions& options) {
  const FloatEnv float_env;
  return run_attention_backward(
      AttentionProblem::jagged(inputs.q, inputs.k, inputs.v, options.forward,
                               "flex_attention_backward"),
      {.q = inputs.q.values,
       .k = inputs.k.view(),
       .v = inputs.v.view(),
       .out = inputs.out,
       .lse = inputs.lse,
       .d_out = inputs.d_out,
       .d_lse = inputs.d_lse},
      options.wanted);
}

AttentionGradients detail::paged_backward(const PagedBackwardInputs& inputs,
                                          const AttentionBackwardOptions& options) {
  const FloatEnv float_env;
  return run_attention_backward(
      AttentionProblem::paged(inputs.q, inputs.keys, options.forward, "flex_attention_backward"),
      {.q = inputs.q,
       .k = inputs.keys.k,
       .v = inputs.keys.v,
       .out = inputs.out,
       .lse = inputs.lse,
       .d_out = inputs.d_out,
       .d_lse = inputs.d_lse},
      options.wanted);
}

}  // namespace quire
