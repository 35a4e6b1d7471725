// The first and last byte of a view, and whether it covers everything between them. Tensor layer.
#include "tensor/overlap.h"

#include <algorithm>
#include <cstddef>

namespace quire {

MemoryRange::MemoryRange(const void* data, DType dtype, const Shape& shape, const Shape& strides)
    : shape_(&shape), strides_(&strides) {
  if (std::ranges::find(shape, 0) != shape.end()) return;
  const std::int64_t size = dtype_size(dtype);
  first_ = reinterpret_cast<std::uintptr_t>(data);
  begin_ = end_ = first_;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t bytes = (shape[axis] - 1) * strides[axis] * size;
    (bytes < 0 ? begin_ : end_) += static_cast<std::uintptr_t>(bytes);
  }
  end_ += static_cast<std::uintptr_t>(size);
}

bool MemoryRange::repeats_an_element() const {
  for (std::size_t axis = 0; axis < shape().rank(); ++axis)
    if (shape()[axis] > 1 && strides()[axis] == 0) return true;
  return false;
}

// Whether the elements fill their memory without gaps, in any order of the axes.
bool MemoryRange::is_dense() const {
  std::int64_t filled = 1;
  for (std::size_t found = 1; found > 0;) {
    found = 0;
    for (std::size_t axis = 0; axis < shape().rank(); ++axis) {
      if (shape()[axis] < 2 || strides()[axis] != filled) continue;
      filled *= shape()[axis];
      ++found;
    }
  }
  return filled == element_count(shape());
}

bool MemoryRange::holds_an_end_of(const MemoryRange& other) const {
  const auto holds = [&](std::uintptr_t byte) { return begin_ <= byte && byte < end_; };
  return (holds(other.begin_) || holds(other.end_ - 1)) && is_dense();
}

bool MemoryRange::surely_overlaps(const MemoryRange& other) const {
  if (begin_ >= other.end_ || other.begin_ >= end_) return false;  // nearly always
  return first_ == other.first_ || holds_an_end_of(other) || other.holds_an_end_of(*this);
}

}  // namespace quire
