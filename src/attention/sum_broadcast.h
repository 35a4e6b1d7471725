// Gradients of what was broadcast: sums over the axes along which it was repeated. Attention layer.
#pragma once
#include "quire/tensor.h"

namespace quire::attention {

/// `wide` has more axes in front, or more than one element where `shape` has one. Summed in f64 in
/// row-major order, then rounded to `dtype`.
Tensor sum_to(const ConstTensorView& wide, const Shape& shape, DType dtype);

}  // namespace quire::attention
