// Every element of the wide tensor to its place. Attention layer.
#include "attention/sum_broadcast.h"

#include <vector>

namespace quire::attention {

Tensor sum_to(const ConstTensorView& wide, const Shape& shape, DType dtype) {
  const Tensor from = to(wide, DType::f64);
  Tensor sums(shape, DType::f64);
  const std::size_t rank = wide.rank(), more = rank - shape.rank();
  // Steps of `sums` along the axes of `wide`; 0 along those that are summed.
  std::vector<std::int64_t> step(rank, 0), index(rank, 0);
  for (std::size_t i = 0; i < shape.rank(); ++i)
    if (shape[i] != 1) step[more + i] = sums.view().strides()[i];
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    sums.data_as<double>()[at] += from.data_as<double>()[i];
    for (std::size_t axis = rank; axis-- > 0;) {
      at += step[axis];
      if (++index[axis] < wide.shape()[axis]) break;
      at -= step[axis] * index[axis];
      index[axis] = 0;
    }
  }
  return sums.to(dtype);
}

}  // namespace quire::attention
