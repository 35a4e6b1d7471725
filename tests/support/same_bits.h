// Whether two tensors are equal bit by bit. Tests only.
#pragma once
#include <cstring>

#include "quire/tensor.h"

namespace quire::testing {

/// Same shape, dtype and bits; strides do not matter.
inline bool same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = contiguous(a), y = contiguous(b);
  return std::memcmp(x.data(), y.data(),
                     static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype())) == 0;
}

}  // namespace quire::testing
