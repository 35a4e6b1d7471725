// scaled_dot_product_attention_backward: flex_attention's backward plan with dropout, and sums over
// what was broadcast. Attention layer.
#include <utility>

#include "attention/backward_inputs.h"
#include "attention/backward_request.h"
#include "attention/function_names.h"
#include "attention/jagged_backward.h"
#include "attention/sdpa_call.h"
#include "attention/sdpa_jagged.h"
#include "attention/sdpa_request.h"
#include "attention/sum_broadcast.h"
#include "attention/validate.h"
#include "plan/backward_plan.h"
#include "quire/error.h"
#include "quire/scaled_dot_product_attention.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

using attention::names::kSdpaBackward;

using attention::SdpaCall;

void check_mask_wanted(const SdpaOptions& options, bool wanted) {
  const auto* mask = std::get_if<ConstTensorView>(&options.attn_mask);
  if (wanted && (mask == nullptr || !is_floating(mask->dtype())))
    fail(ErrorKind::value, kSdpaBackward,
         "only an attn_mask that is a tensor of floats has a gradient");
}

// [batch..., heads, rows(, dim)] as the plan takes it; a copy in `held` if strides cannot say that.
ConstTensorView merged(const ConstTensorView& view, const Shape& shape, Tensor& held) {
  if (view.shape() == shape) return view;
  if (view.is_contiguous()) return view.reshape(shape);
  held = contiguous(view);
  return std::as_const(held).view().reshape(shape);
}

// A gradient as the plan writes it, in the axes of the call, and as it is returned.
class InputGradient {
 public:
  InputGradient(bool wanted, const ConstTensorView& input, const ConstTensorView& axes, DType wide)
      : shape_(input.shape()), dtype_(input.dtype()) {
    if (!wanted) return;
    is_empty_ = input.numel() == 0;  // no channels
    if (is_empty_) return;
    is_sum_ = input.numel() != axes.numel();
    made_.emplace(axes.shape(), is_sum_ ? wide : dtype_);
  }
  std::optional<TensorView> view() {
    return made_ ? std::optional<TensorView>(made_->view()) : std::nullopt;
  }
  /// `expanded`: the input's shape after broadcasting.
  std::optional<Tensor> take(const Shape& expanded) const {
    if (is_empty_) return Tensor(shape_, dtype_);
    if (!made_) return std::nullopt;
    if (!is_sum_) return made_->reshape(shape_);
    return attention::sum_to(made_->reshape(expanded), shape_, dtype_);
  }

 private:
  Shape shape_;
  DType dtype_;
  bool is_sum_ = false, is_empty_ = false;
  std::optional<Tensor> made_;
};

// The call's axes with the batch spelled out.
Shape expanded_shape(const SdpaCall& call, const ConstTensorView& axes) {
  Shape shape = call.batch;
  for (const std::int64_t axis : {1, 2, 3}) shape.push_back(axes.dim(axis));
  return shape;
}

SdpaGradients run_backward(const SdpaCall& call, const SdpaBackwardInputs& inputs,
                           const SdpaOptions& options, const SdpaGradientsWanted& wanted) {
  const attention::SdpaRules rules = attention::sdpa_rules(options, attention::mask_target(call));
  plan::BackwardRequest request{.forward = attention::sdpa_request(call, rules, options)};
  WantedGradients rows = wanted.inputs;
  rows.buffers = wanted.attn_mask;
  attention::set_wanted(rows, rules.score_mod, rules.mask_mod, request);
  plan::BackwardPlan plan(std::move(request));

  const AttentionShape& s = call.shape;
  const Shape numbers{s.batch, s.q_heads, s.q_len}, outs = attention::output_shape(s);
  Tensor held[3];
  plan::BackwardTensors tensors{.q = call.q,
                                .k = call.k,
                                .v = call.v,
                                .out = merged(inputs.out, outs, held[0]),
                                .lse = merged(inputs.lse, numbers, held[1]),
                                .d_out = merged(inputs.d_out, outs, held[2])};
  const DType wide = plan.compute_type();
  InputGradient q(rows.q, inputs.q, call.q, wide), k(rows.k, inputs.k, call.k, wide),
      v(rows.v, inputs.v, call.v, wide);
  tensors.d_q = q.view();
  tensors.d_k = k.view();
  tensors.d_v = v.view();
  AttentionGradients made;
  const std::vector<TensorView> buffers = attention::make_buffers(plan.buffers(), made);
  tensors.d_buffers = buffers;
  plan.run(tensors);
  SdpaGradients result{.q = q.take(expanded_shape(call, call.q)),
                       .k = k.take(expanded_shape(call, call.k)),
                       .v = v.take(expanded_shape(call, call.v))};
  if (wanted.attn_mask)
    result.attn_mask =
        made.buffers.at(0).gradient.reshape(std::get<ConstTensorView>(options.attn_mask).shape());
  return result;
}

// Nothing was read, so nothing has a gradient.
SdpaGradients zeros(const SdpaBackwardInputs& inputs, const SdpaOptions& options,
                    const SdpaGradientsWanted& wanted) {
  const auto zero = [](bool is_wanted, const ConstTensorView& like) {
    return is_wanted ? std::optional<Tensor>(Tensor(like.shape(), like.dtype())) : std::nullopt;
  };
  SdpaGradients result{.q = zero(wanted.inputs.q, inputs.q),
                       .k = zero(wanted.inputs.k, inputs.k),
                       .v = zero(wanted.inputs.v, inputs.v)};
  if (wanted.attn_mask) result.attn_mask = zero(true, std::get<ConstTensorView>(options.attn_mask));
  return result;
}

}  // namespace

SdpaGradients scaled_dot_product_attention_backward(const SdpaBackwardInputs& inputs,
                                                    const SdpaOptions& options,
                                                    const SdpaGradientsWanted& wanted) {
  const FloatEnv float_env;
  const SdpaCall call = attention::sdpa_call(inputs.q, inputs.k, inputs.v, options);
  check_mask_wanted(options, wanted.attn_mask);
  attention::validate_loss(kSdpaBackward, {inputs.out, inputs.lse, inputs.d_out, std::nullopt},
                           attention::sdpa_rows(call), call.out_shape);
  if (element_count(call.out_shape) == 0 || call.shape.kv_len == 0)
    return zeros(inputs, options, wanted);
  return run_backward(call, inputs, options, wanted);
}

SdpaGradients scaled_dot_product_attention_backward(const JaggedSdpaBackwardInputs& inputs,
                                                    const SdpaOptions& options,
                                                    const SdpaGradientsWanted& wanted) {
  const FloatEnv float_env;
  const attention::JaggedCall call = attention::jagged_call(inputs.q, inputs.k, inputs.v, options);
  check_mask_wanted(options, wanted.attn_mask);
  if (call.v_rows.dim == 0) {
    const auto zero = [](bool is_wanted, const Jagged& like) {
      return is_wanted ? std::optional<Tensor>(Tensor(like.values.shape(), like.values.dtype()))
                       : std::nullopt;
    };
    return {.q = zero(wanted.inputs.q, inputs.q),
            .k = zero(wanted.inputs.k, inputs.k),
            .v = zero(wanted.inputs.v, inputs.v)};
  }
  plan::BackwardRequest request{.forward = attention::jagged_sdpa_request(call, options)};
  WantedGradients rows = wanted.inputs;
  rows.buffers = false;
  attention::set_wanted(rows, std::nullopt, std::nullopt, request);
  plan::BackwardPlan plan(std::move(request));
  const AttentionGradients made = attention::run_jagged_backward(
      kSdpaBackward, plan, {call.q, call.k, call.v, inputs.out, inputs.lse, inputs.d_out});
  // Heads of size 1 were broadcast.
  const auto narrow = [](const std::optional<Tensor>& gradient,
                         const Jagged& input) -> std::optional<Tensor> {
    if (!gradient || gradient->shape() == input.values.shape()) return gradient;
    return attention::sum_to(*gradient, input.values.shape(), input.values.dtype());
  };
  return {
      .q = narrow(made.q, inputs.q), .k = narrow(made.k, inputs.k), .v = narrow(made.v, inputs.v)};
}

}  // namespace quire
