// flex_attention over jagged batches, and its plan. Attention layer.
#include <memory>
#include <utility>

#include "attention/aux_outputs.h"
#include "attention/disjoint_outputs.h"
#include "attention/function_names.h"
#include "attention/jagged_request.h"
#include "attention/validate.h"
#include "plan/forward_plan.h"
#include "quire/jagged.h"
#include "runtime/float_env.h"

namespace quire {

using attention::names::kFlexAttention;

struct JaggedAttentionPlan::State {
  // Of values, which every run must have.
  struct Values {
    Shape shape;
    DType dtype;
  };

  State(const Jagged& q, const Jagged& k, const Jagged& v, const JaggedAttentionOptions& options)
      : plan(attention::jagged_request(kFlexAttention, q, k, v, options)),
        orders{q.order, k.order, v.order},
        q(of(q)),
        k(of(k)),
        v(of(v)) {}

  static Values of(const Jagged& jagged) { return {jagged.values.shape(), jagged.values.dtype()}; }

  plan::ForwardPlan plan;
  attention::JaggedOrders orders;
  Values q, k, v;
};

JaggedAttentionPlan::JaggedAttentionPlan(const Jagged& q, const Jagged& k, const Jagged& v,
                                         const JaggedAttentionOptions& options)
    : state_(in_float_env([&] { return std::make_unique<State>(q, k, v, options); })) {}
JaggedAttentionPlan::JaggedAttentionPlan(JaggedAttentionPlan&&) noexcept = default;
JaggedAttentionPlan& JaggedAttentionPlan::operator=(JaggedAttentionPlan&&) noexcept = default;
JaggedAttentionPlan::~JaggedAttentionPlan() = default;

DType JaggedAttentionPlan::compute_type() const { return state_->plan.compute_type(); }
std::size_t JaggedAttentionPlan::scratch_bytes() const { return state_->plan.scratch_bytes(); }

void JaggedAttentionPlan::run(const ConstTensorView& q, const ConstTensorView& k,
                              const ConstTensorView& v, const Outputs& outputs) {
  const FloatEnv float_env;
  attention::validate_planned(kFlexAttention, "query", q, state_->q.shape, state_->q.dtype);
  attention::validate_planned(kFlexAttention, "key", k, state_->k.shape, state_->k.dtype);
  attention::validate_planned(kFlexAttention, "value", v, state_->v.shape, state_->v.dtype);
  Shape wanted = q.shape();
  const Shape rows{wanted[0], wanted[1]};
  wanted[2] = v.dim(2);
  attention::validate_tensor(kFlexAttention, "out", outputs.out, wanted, q.dtype());
  plan::ForwardTensors tensors = attention::jagged_tensors(q, k, v, outputs.out, state_->orders);
  attention::set_stats(kFlexAttention, {outputs.lse, outputs.max_scores}, rows, compute_type(),
                       tensors);
  attention::validate_disjoint(kFlexAttention, tensors, {outputs.lse, outputs.max_scores},
                               state_->plan.buffers());
  state_->plan.run(tensors);
}

Tensor flex_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                      const JaggedAttentionOptions& options) {
  const FloatEnv float_env;
  attention::validate_aux(kFlexAttention, options.return_aux, options.aux);
  plan::ForwardPlan plan(attention::jagged_request(kFlexAttention, q, k, v, options));
  attention::JaggedOutputs made = attention::run_jagged(plan, q, k, v, options.return_aux);
  if (options.aux != nullptr) *options.aux = std::move(made.aux);
  return std::move(made.out);
}

}  // namespace quire
