// Copies the elements of a view into row-major memory and converts them to another dtype, by the
// rules of quire::to (quire/tensor.h). Tensor layer.
#pragma once
#include "quire/tensor_view.h"

namespace quire {

// `destination` has room for view.numel() elements of `dtype` and does not overlap the view.
void copy_elements(const ConstTensorView& view, DType dtype, void* destination);

}  // namespace quire
