// flex_attention: validate, plan, run. Attention layer.
#include "quire/flex_attention.h"

#include <utility>

#include "attention/forward_request.h"
#include "attention/validate.h"
#include "plan/forward_plan.h"
#include "quire/error.h"

namespace quire {
namespace {

plan::ForwardRequest checked_request(const AttentionShape& shape,
                                     const FlexAttentionOptions& options) {
  attention::validate(shape, options);
  return attention::forward_request(shape, options);
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, const FlexAttentionOptions& options)
    : shape_(shape), plan_(std::make_unique<plan::ForwardPlan>(checked_request(shape, options))) {}
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

DType AttentionPlan::compute_type() const { return plan_->compute_type(); }
std::size_t AttentionPlan::scratch_bytes() const { return plan_->scratch_bytes(); }

void AttentionPlan::run(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const Outputs& outputs) {
  attention::validate_run(shape_, AttentionShape::of(q, k, v));
  attention::validate_output("out", outputs.out, attention::output_shape(shape_), shape_.q_dtype);
  plan::ForwardTensors tensors{.q = q, .k = k, .v = v, .out = outputs.out};
  const Shape rows{shape_.batch, shape_.q_heads, shape_.q_len};
  const auto stat = [&](const char* name, const std::optional<TensorView>& view) -> void* {
    if (!view.has_value()) return nullptr;
    attention::validate_output(name, *view, rows, compute_type());
    attention::validate_row_major(name, *view);
    return view->data();
  };
  tensors.lse = stat("lse", outputs.lse);
  tensors.max_scores = stat("max_scores", outputs.max_scores);
  plan_->run(tensors);
}

Tensor flex_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const FlexAttentionOptions& options) {
  const AttentionShape shape = AttentionShape::of(q, k, v);
  if ((options.return_aux.lse || options.return_aux.max_scores) && options.aux == nullptr) {
    throw Error(ErrorKind::value,
                "[flex_attention] return_aux asks for outputs, and aux, where "
                "to put them, is null");
  }
  AttentionPlan plan(shape, options);
  Tensor out = Tensor::empty(attention::output_shape(shape), shape.q_dtype);
  AuxOutput aux;
  AttentionPlan::Outputs outputs{.out = out.view()};
  const Shape rows{shape.batch, shape.q_heads, shape.q_len};
  if (options.return_aux.lse) {
    aux.lse = Tensor::empty(rows, plan.compute_type());
    outputs.lse = aux.lse->view();
  }
  if (options.return_aux.max_scores) {
    aux.max_scores = Tensor::empty(rows, plan.compute_type());
    outputs.max_scores = aux.max_scores->view();
  }
  plan.run(q, k, v, outputs);
  if (options.aux != nullptr) *options.aux = std::move(aux);
  return out;
}

}  // namespace quire
