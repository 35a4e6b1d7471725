// flex_attention over paged keys, and its plan. Attention layer.
#include <memory>
#include <utility>

#include "attention/aux_outputs.h"
#include "attention/disjoint_outputs.h"
#include "attention/function_names.h"
#include "attention/paged_request.h"
#include "attention/validate.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "quire/paged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using attention::names::kFlexAttention;

ConstTensorView pages_of(const ConstTensorView& cache, std::int64_t page_size) {
  const bool fits =
      cache.rank() == 4 && cache.dim(0) == 1 && page_size >= 1 && cache.dim(2) % page_size == 0;
  if (!fits) {
    fail(ErrorKind::value, "pages_of",
         "a cache must be [1, heads, pages * page_size, dim]; got {} and a page size of {}",
         to_string(cache.shape()), page_size);
  }
  const Shape& strides = cache.strides();
  return {cache.data(),
          cache.dtype(),
          {cache.dim(2) / page_size, cache.dim(1), page_size, cache.dim(3)},
          {strides[2] * page_size, strides[1], strides[2], strides[3]}};
}

struct PagedKeysPlan::State {
  State(const ConstTensorView& q, const PagedKeys& keys, const PagedKeysOptions& options)
      : plan(attention::paged_request(q, keys, options)),
        // Pages as a batch: all sizes and dtypes of the tensors.
        shape(AttentionShape::of(q, keys.k, keys.v)) {}

  plan::ForwardPlan plan;
  AttentionShape shape;
};

PagedKeysPlan::PagedKeysPlan(const ConstTensorView& q, const PagedKeys& keys,
                             const PagedKeysOptions& options)
    : state_(in_float_env([&] { return std::make_unique<State>(q, keys, options); })) {}
PagedKeysPlan::PagedKeysPlan(PagedKeysPlan&&) noexcept = default;
PagedKeysPlan& PagedKeysPlan::operator=(PagedKeysPlan&&) noexcept = default;
PagedKeysPlan::~PagedKeysPlan() = default;

DType PagedKeysPlan::compute_type() const { return state_->plan.compute_type(); }
std::size_t PagedKeysPlan::scratch_bytes() const { return state_->plan.scratch_bytes(); }

void PagedKeysPlan::run(const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v, const AttentionPlan::Outputs& outputs) {
  const FloatEnv float_env;
  const AttentionShape& shape = state_->shape;
  attention::validate_run(kFlexAttention, shape, q, k, v);
  attention::validate_tensor(kFlexAttention, "out", outputs.out, attention::output_shape(shape),
                             shape.q_dtype);
  plan::ForwardTensors tensors{.q = q, .k = k, .v = v, .out = outputs.out};
  const Shape rows{shape.batch, shape.q_heads, shape.q_len};
  attention::set_stats(kFlexAttention, {outputs.lse, outputs.max_scores}, rows, compute_type(),
                       tensors);
  attention::validate_disjoint(kFlexAttention, tensors, {outputs.lse, outputs.max_scores},
                               state_->plan.buffers());
  state_->plan.run(tensors);
}

Tensor flex_attention(const ConstTensorView& q, const PagedKeys& keys,
                      const PagedKeysOptions& options) {
  const FloatEnv float_env;
  attention::validate_aux(kFlexAttention, options.return_aux, options.aux);
  PagedKeysPlan plan(q, keys, options);
  Tensor out = Tensor::empty({q.dim(0), q.dim(1), q.dim(2), keys.v.dim(3)}, q.dtype());
  AttentionPlan::Outputs outputs{.out = out.view()};
  const Shape rows{q.dim(0), q.dim(1), q.dim(2)};
  AuxOutput aux = attention::make_aux(options.return_aux, rows, plan.compute_type(), outputs);
  plan.run(q, keys.k, keys.v, outputs);
  if (options.aux != nullptr) *options.aux = std::move(aux);
  return out;
}

}  // namespace quire
