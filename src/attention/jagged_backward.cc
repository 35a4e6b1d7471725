// flex_attention_backward over jagged batches. Attention layer.
#include "attention/jagged_backward.h"

#include <utility>

#include "attention/backward_inputs.h"
#include "attention/backward_request.h"
#include "attention/function_names.h"
#include "attention/jagged_request.h"
#include "attention/jagged_sequences.h"
#include "plan/backward_plan.h"
#include "quire/flex_attention_backward.h"
#include "runtime/float_env.h"

namespace quire {
namespace attention {

AttentionGradients run_jagged_backward(const char* where, plan::BackwardPlan& plan,
                                       const JaggedBackwardInputs& inputs) {
  const Shape& values = inputs.q.values.shape();
  validate_loss(where, {inputs.out, inputs.lse, inputs.d_out, inputs.d_lse}, {values[0], values[1]},
                {values[0], values[1], inputs.v.values.dim(2)});
  const JaggedOrder order = inputs.q.order;
  // Of [total, heads] or [heads, total].
  const auto numbers = [&](const ConstTensorView& view) {
    return (order == JaggedOrder::kTokens ? view.transpose(0, 1) : view).unsqueeze(0);
  };
  plan::BackwardTensors tensors{.q = four_axes(inputs.q.values, order),
                                .k = four_axes(inputs.k.values, inputs.k.order),
                                .v = four_axes(inputs.v.values, inputs.v.order),
                                .lse = numbers(inputs.lse)};
  if (inputs.d_out.has_value()) {
    tensors.out = four_axes(inputs.out, order);
    tensors.d_out = four_axes(*inputs.d_out, order);
  }
  if (inputs.d_lse.has_value()) tensors.d_lse = numbers(*inputs.d_lse);
  AttentionGradients made;
  // All zero: holes are not written by the run.
  const auto make = [](bool wanted, const Jagged& like, std::optional<Tensor>& to,
                       std::optional<TensorView>& view) {
    if (!wanted) return;
    to.emplace(like.values.shape(), like.values.dtype());
    view = four_axes(to->view(), like.order);
  };
  make(plan.wanted().q, inputs.q, made.q, tensors.d_q);
  make(plan.wanted().k, inputs.k, made.k, tensors.d_k);
  make(plan.wanted().v, inputs.v, made.v, tensors.d_v);
  const std::vector<TensorView> buffers = make_buffers(plan.buffers(), made);
  tensors.d_buffers = buffers;
  plan.run(tensors);
  return made;
}

}  // namespace attention

AttentionGradients flex_attention_backward(const JaggedBackwardInputs& inputs,
                                           const JaggedBackwardOptions& options) {
  const FloatEnv float_env;
  using attention::names::kFlexAttentionBackward;
  plan::BackwardRequest request{.forward =
                                    attention::jagged_request(kFlexAttentionBackward, inputs.q,
                                                              inputs.k, inputs.v, options.forward)};
  const JaggedAttentionOptions& forward = options.forward;
  attention::set_wanted(options.wanted, forward.score_mod,
                        forward.block_mask ? std::optional<MaskMod>(forward.block_mask->mask_mod())
                                           : forward.mask_mod,
                        request);
  plan::BackwardPlan plan(std::move(request));
  return attention::run_jagged_backward(kFlexAttentionBackward, plan, inputs);
}

}  // namespace quire
