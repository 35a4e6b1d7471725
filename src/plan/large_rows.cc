// Computes maximum and sum of large rows by a forward plan with one channel of values. Plan layer.
#include "plan/large_rows.h"

#include "kernels/backward/lse_correction.h"

namespace quire::plan {
namespace {

AttentionProblem with_one_value(const ForwardRequest& forward) {
  AttentionProblem problem = forward;
  problem.v_head_dim = 1;
  return problem;
}

}  // namespace

void LargeRows::run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  if (!plan_.has_value()) plan_.emplace(with_one_value(forward_));
  rows_ = q.dim(2);
  const std::int64_t numbers = q.dim(0) * forward_.q_heads * rows_;
  if (stats_.numel() != 2 * numbers) {
    stats_ = Tensor::empty({2, numbers}, forward_.compute_type());
    out_ = Tensor::empty({q.dim(0), forward_.q_heads, rows_, 1}, forward_.q_dtype);
  }
  const Shape& size = v.shape();
  const auto half = static_cast<std::size_t>(numbers) * dtype_size(stats_.dtype());
  plan_->run(
      {.q = q,
       .k = k,
       .v = ConstTensorView(v.data(), v.dtype(), {size[0], size[1], size[2], 1}, v.strides()),
       .out = out_.view(),
       .row_max = stats_.data(),
       .row_sum = static_cast<char*>(stats_.data()) + half});
}

template <class T>
T LargeRows::correction(const kernels::ForwardCall& call, std::int64_t h, std::int64_t row,
                        T lse) const {
  const T* const m = static_cast<const T*>(stats_.data());
  return kernels::lse_correction(call, h, m[row], (m + stats_.numel() / 2)[row], lse);
}

template float LargeRows::correction(const kernels::ForwardCall&, std::int64_t, std::int64_t,
                                     float) const;
template double LargeRows::correction(const kernels::ForwardCall&, std::int64_t, std::int64_t,
                                      double) const;

}  // namespace quire::plan
