// Allocates the sums of buffer gradients and writes them to the caller's tensors. Plan layer.
#include "plan/gradient_plan.h"

#include <cstring>

#include "kernels/backward/gradient_runner.h"
#include "kernels/prefill/forward_functions.h"
#include "runtime/ceil_div.h"
#include "tensor/element.h"

namespace quire::plan {

// Copies `from`, row-major elements of type T, to a view of any strides; null: zeros.
template <class T>
void write_elements(const T* from, const TensorView& to) {
  visit_dtype(to.dtype(), [&]<class E>(std::type_identity<E>) {
    if constexpr (std::is_floating_point_v<E> || std::is_same_v<E, BFloat16> ||
                  std::is_same_v<E, Float16>) {
      E* const data = static_cast<E*>(to.data());
      const std::size_t rank = to.rank();
      const std::int64_t count = to.numel();
      std::int64_t at[kMaxRank] = {}, offset = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        data[offset] = from == nullptr ? E(0.0f) : E(from[i]);
        for (std::size_t axis = rank; axis-- > 0;) {
          offset += to.strides()[axis];
          if (++at[axis] < to.shape()[axis]) break;
          offset -= at[axis] * to.strides()[axis];
          at[axis] = 0;
        }
      }
    }
  });
}

template void write_elements(const float*, const TensorView&);
template void write_elements(const double*, const TensorView&);

namespace {

bool takes_sums(const TensorView& output, DType compute_type) {
  return output.dtype() == compute_type && output.is_contiguous();
}

}  // namespace

GradientPlan::GradientPlan(const GradientRequest& request)
    : has_program_(request.score_mod != nullptr),
      compute_type_(request.compile.precision == Precision::kF64 ? DType::f64 : DType::f32),
      sizes_(request.sizes),
      target_of_(request.buffers.size(), -1) {
  if (!has_program_) return;
  compiled_ =
      formula::compile_gradient(*request.score_mod, request.compile,
                                request.buffers.empty() ? formula::GradientSites::kNone
                                                        : formula::GradientSites::kMarkedBuffers);
  thread_bytes_ = kernels::gradient_scratch_bytes(compiled_.program, sizes_);
  const std::vector<Buffer>& targets = compiled_.targets;
  for (const Buffer& target : targets)
    sums_.push_back(target.dtype() == compute_type_ ? Tensor()
                                                    : Tensor::empty(target.shape(), compute_type_));
  for (std::size_t i = 0; i < request.buffers.size(); ++i)
    for (std::size_t target = 0; target < targets.size(); ++target)
      if (targets[target].is_same(request.buffers[i])) target_of_[i] = static_cast<int>(target);
  gradients_.resize(targets.size());
  const std::size_t tiles = ceil_div(sizes_.q_len, kernels::kQueryTile);
  turns_ = std::vector<kernels::Turn>(1 + tiles);
  targets_ = {gradients_.data(), turns_.data(), turns_.data() + 1, static_cast<int>(tiles)};
}

std::size_t GradientPlan::shared_bytes() const {
  std::size_t bytes = turns_.size() * sizeof(kernels::Turn);
  for (const Tensor& sums : sums_) bytes += sums.numel() * dtype_size(sums.dtype());
  return bytes;
}

void GradientPlan::begin_run(std::span<const TensorView> outputs) {
  for (kernels::Turn& turn : turns_) turn.reset();
  for (std::size_t i = 0; i < target_of_.size(); ++i) {
    if (target_of_[i] < 0) continue;
    const std::size_t target = target_of_[i];
    const std::size_t bytes = (outputs[i].numel()) * dtype_size(compute_type_);
    gradients_[target] = outputs[i].data();
    if (!takes_sums(outputs[i], compute_type_)) {
      Tensor& sums = sums_[target];
      if (sums.numel() != outputs[i].numel() || sums.dtype() != compute_type_)
        sums = Tensor::empty(outputs[i].shape(), compute_type_);
      gradients_[target] = sums.data();
    }
    if (bytes > 0) std::memset(gradients_[target], 0, bytes);
  }
}

void GradientPlan::end_run(std::span<const TensorView> outputs) const {
  for (std::size_t i = 0; i < target_of_.size(); ++i) {
    if (target_of_[i] < 0) {
      write_elements<float>(nullptr, outputs[i]);
      continue;
    }
    if (takes_sums(outputs[i], compute_type_)) continue;
    const void* const sums = gradients_[target_of_[i]];
    if (compute_type_ == DType::f64)
      write_elements(static_cast<const double*>(sums), outputs[i]);
    else
      write_elements(static_cast<const float*>(sums), outputs[i]);
  }
}

}  // namespace quire::plan
