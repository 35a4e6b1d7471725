// flex_attention_backward over dense tensors: validate, plan, run. Attention layer.
#include "quire/flex_attention_backward.h"

#include <utility>

#include "attention/backward_inputs.h"
#include "attention/backward_request.h"
#include "attention/disjoint_outputs.h"
#include "attention/function_names.h"
#include "attention/validate.h"
#include "plan/backward_plan.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using attention::names::kFlexAttentionBackward;

const Tensor& AttentionGradients::of(const std::string& buffer) const {
  for (const BufferGradient& known : buffers)
    if (known.buffer.name() == buffer) return known.gradient;
  fail(ErrorKind::value, kFlexAttentionBackward, "there is no gradient of a buffer '{}'", buffer);
}

AttentionBackwardPlan::AttentionBackwardPlan(const AttentionShape& shape,
                                             const FlexAttentionBackwardOptions& options)
    : shape_(shape), plan_(in_float_env([&] {
        return std::make_unique<plan::BackwardPlan>(attention::backward_request(shape, options));
      })) {}
AttentionBackwardPlan::AttentionBackwardPlan(AttentionBackwardPlan&&) noexcept = default;
AttentionBackwardPlan& AttentionBackwardPlan::operator=(AttentionBackwardPlan&&) noexcept = default;
AttentionBackwardPlan::~AttentionBackwardPlan() = default;

DType AttentionBackwardPlan::compute_type() const { return plan_->compute_type(); }
const std::vector<Buffer>& AttentionBackwardPlan::buffers() const { return plan_->buffers(); }
std::size_t AttentionBackwardPlan::scratch_bytes() const { return plan_->scratch_bytes(); }

void AttentionBackwardPlan::run(const BackwardInputs& inputs, const Outputs& outputs) {
  const FloatEnv float_env;
  attention::validate_run(kFlexAttentionBackward, shape_, inputs.q, inputs.k, inputs.v);
  attention::validate_loss(
      kFlexAttentionBackward, {inputs.out, inputs.lse, inputs.d_out, inputs.d_lse},
      {shape_.batch, shape_.q_heads, shape_.q_len}, attention::output_shape(shape_));
  const plan::Wanted& wanted = plan_->wanted();
  attention::validate_gradient("q", wanted.q, outputs.q, inputs.q);
  attention::validate_gradient("k", wanted.k, outputs.k, inputs.k);
  attention::validate_gradient("v", wanted.v, outputs.v, inputs.v);
  attention::validate_buffers(plan_->buffers(), outputs.buffers);
  attention::validate_disjoint(kFlexAttentionBackward, inputs, outputs, plan_->buffers());
  plan_->run({.q = inputs.q,
              .k = inputs.k,
              .v = inputs.v,
              .out = inputs.out,
              .lse = inputs.lse,
              .d_out = inputs.d_out,
              .d_lse = inputs.d_lse,
              .d_q = outputs.q,
              .d_k = outputs.k,
              .d_v = outputs.v,
              .d_buffers = outputs.buffers});
}

AttentionGradients flex_attention_backward(const BackwardInputs& inputs,
                                           const FlexAttentionBackwardOptions& options) {
  const FloatEnv float_env;
  const AttentionShape shape =
      attention::shape_of(kFlexAttentionBackward, inputs.q, inputs.k, inputs.v);
  attention::validate(kFlexAttentionBackward, shape, options.forward);
  attention::validate_loss(  // before a plan is made of sizes that do not fit
      kFlexAttentionBackward, {inputs.out, inputs.lse, inputs.d_out, inputs.d_lse},
      {shape.batch, shape.q_heads, shape.q_len}, attention::output_shape(shape));
  AttentionBackwardPlan plan(shape, options);
  AttentionGradients made;
  AttentionBackwardPlan::Outputs outputs;
  const auto make = [](bool wanted, const ConstTensorView& like, std::optional<Tensor>& to,
                       std::optional<TensorView>& view) {
    if (wanted) view = to.emplace(Tensor::empty(like.shape(), like.dtype())).view();
  };
  make(options.wanted.q, inputs.q, made.q, outputs.q);
  make(options.wanted.k, inputs.k, made.k, outputs.k);
  make(options.wanted.v, inputs.v, made.v, outputs.v);
  const std::vector<TensorView> buffers = attention::make_buffers(plan.buffers(), made);
  outputs.buffers = buffers;
  plan.run(inputs, outputs);
  return made;
}

}  // namespace quire
