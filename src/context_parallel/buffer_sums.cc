// Sums of tensors, element by element. Context_parallel layer.
#include "context_parallel/buffer_sums.h"

#include <cstdint>

namespace quire::context_parallel {
namespace {

template <class T>
void add_elements(const Tensor& from, Tensor& to) {
  for (std::int64_t i = 0; i < from.numel(); ++i) to.data_as<T>()[i] += from.data_as<T>()[i];
}

void add_buffer(const Tensor& from, Tensor& to) {
  switch (from.dtype()) {
    case DType::f32:
      return add_elements<float>(from, to);
    case DType::f64:
      return add_elements<double>(from, to);
    default: {
      Tensor sum = to.to(DType::f32);
      add_elements<float>(from.to(DType::f32), sum);
      to = sum.to(from.dtype());
    }
  }
}

}  // namespace

BufferSums::BufferSums(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) sums_.push_back(Tensor(buffer.shape(), buffer.dtype()));
}

std::vector<Tensor> BufferSums::make_parts() const {
  std::vector<Tensor> made;
  for (const Tensor& sum : sums_) made.push_back(Tensor::empty(sum.shape(), sum.dtype()));
  return made;
}

std::vector<TensorView> BufferSums::views_of(std::vector<Tensor>& parts) {
  std::vector<TensorView> views;
  for (Tensor& part : parts) views.push_back(part.view());
  return views;
}

void BufferSums::add(const std::vector<Tensor>& parts) {
  for (std::size_t i = 0; i < sums_.size(); ++i) add_buffer(parts[i], sums_[i]);
}

}  // namespace quire::context_parallel
