// flex_attention: validate, plan, run; a call over a pool of pages becomes one over its sequences.
// Attention layer.
#include "quire/flex_attention.h"

#include <utility>

#include "attention/aux_outputs.h"
#include "attention/disjoint_outputs.h"
#include "attention/forward_request.h"
#include "attention/function_names.h"
#include "attention/paged_recognition.h"
#include "attention/validate.h"
#include "layout/paged_layout.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "quire/paged.h"
#include "runtime/float_env.h"

namespace quire {

using attention::names::kFlexAttention;

// A plan on the sequences' own indices, and what to make it again from when their pages have moved.
struct AttentionPlan::Paged {
  attention::PagedCall call;
  FlexAttentionOptions given;

  std::unique_ptr<plan::ForwardPlan> plan(AttentionShape shape) const {
    shape.kv_len = call.longest;
    plan::ForwardRequest request = attention::forward_request(shape, call.options);
    request.layout =
        std::make_shared<layout::PagedLayout>(call.page_size, call.pages, call.lengths);
    return std::make_unique<plan::ForwardPlan>(std::move(request));
  }
};

AttentionPlan::AttentionPlan(const AttentionShape& shape, const FlexAttentionOptions& options)
    : shape_(shape) {
  const FloatEnv float_env;
  attention::validate(kFlexAttention, shape, options);
  make(options);
}

void AttentionPlan::make(const FlexAttentionOptions& options) {
  std::unique_ptr<Paged> paged;
  if (std::optional<attention::PagedCall> call = attention::recognise_paged(shape_, options)) {
    paged = std::make_unique<Paged>(Paged{std::move(*call), options});
    plan_ = paged->plan(shape_);
  } else {
    plan_ = std::make_unique<plan::ForwardPlan>(attention::forward_request(shape_, options));
  }
  paged_ = std::move(paged);
}

AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

DType AttentionPlan::compute_type() const { return plan_->compute_type(); }
std::size_t AttentionPlan::scratch_bytes() const { return plan_->scratch_bytes(); }

void AttentionPlan::run(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const Outputs& outputs) {
  const FloatEnv float_env;
  attention::validate_run(kFlexAttention, shape_, q, k, v);
  const bool is_wide = outputs.out.dtype() == compute_type();
  attention::validate_tensor(kFlexAttention, "out", outputs.out, attention::output_shape(shape_),
                             is_wide ? compute_type() : shape_.q_dtype);
  if (paged_ != nullptr && !paged_->call.is_unchanged()) {
    const FlexAttentionOptions given = paged_->given;
    make(given);
  }
  plan::ForwardTensors tensors{.q = q, .k = k, .v = v, .out = outputs.out};
  if (paged_ != nullptr) {
    tensors.k = pages_of(k, paged_->call.page_size);
    tensors.v = pages_of(v, paged_->call.page_size);
  }
  const Shape rows{shape_.batch, shape_.q_heads, shape_.q_len};
  attention::set_stats(kFlexAttention, {outputs.lse, outputs.max_scores}, rows, compute_type(),
                       tensors);
  attention::validate_disjoint(kFlexAttention, tensors, {outputs.lse, outputs.max_scores},
                               plan_->buffers());
  plan_->run(tensors);
}

Tensor flex_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      const FlexAttentionOptions& options) {
  const FloatEnv float_env;
  const AttentionShape shape = AttentionShape::of(q, k, v);
  attention::validate_aux(kFlexAttention, options.return_aux, options.aux);
  AttentionPlan plan(shape, options);
  Tensor out = Tensor::empty(attention::output_shape(shape), shape.q_dtype);
  AttentionPlan::Outputs outputs{.out = out.view()};
  const Shape rows{shape.batch, shape.q_heads, shape.q_len};
  AuxOutput aux = attention::make_aux(options.return_aux, rows, plan.compute_type(), outputs);
  plan.run(q, k, v, outputs);
  if (options.aux != nullptr) *options.aux = std::move(aux);
  return out;
}

}  // namespace quire
