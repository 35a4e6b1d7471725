// BufferSums: gradients of the buffers of a score mod, added up run by run. Context_parallel layer.
#pragma once
#include <utility>
#include <vector>

#include "quire/buffer.h"
#include "quire/tensor.h"

namespace quire::context_parallel {

class BufferSums {
 public:
  explicit BufferSums(const std::vector<Buffer>& buffers);

  /// Tensors for what one run adds.
  std::vector<Tensor> make_parts() const;
  static std::vector<TensorView> views_of(std::vector<Tensor>& parts);
  /// Adds in the buffers' dtypes; half precision is added in f32 and rounded.
  void add(const std::vector<Tensor>& parts);
  std::vector<Tensor> take() && { return std::move(sums_); }

 private:
  std::vector<Tensor> sums_;
};

}  // namespace quire::context_parallel
