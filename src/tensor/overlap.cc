// The first and last byte of a view, and whether it covers everything between them. Tensor layer.
#include "tensor/overlap.h"

#include <algorithm>
#include <cstddef>

namespace quire {
namespace {

// Whether the elements fill their memory without gaps, in any order of the axes.
bool is_dense(const ConstTensorView& view) {
  std::int64_t filled = 1;
  for (std::size_t found = 1; found > 0;) {
    found = 0;
    for (std::size_t axis = 0; axis < view.rank(); ++axis) {
      if (view.shape()[axis] < 2 || view.strides()[axis] != filled) continue;
      filled *= view.shape()[axis];
      ++found;
    }
  }
  return filled == view.numel();
}

}  // namespace

bool repeats_an_element(const ConstTensorView& view) {
  for (std::size_t axis = 0; axis < view.rank(); ++axis)
    if (view.shape()[axis] > 1 && view.strides()[axis] == 0) return true;
  return false;
}

MemoryRange::MemoryRange(const ConstTensorView& view) : view_(view) {
  if (std::ranges::find(view.shape(), 0) != view.shape().end()) return;
  const std::int64_t size = dtype_size(view.dtype());
  first_ = reinterpret_cast<std::uintptr_t>(view.data());
  begin_ = end_ = first_;
  for (std::size_t axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t bytes = (view.shape()[axis] - 1) * view.strides()[axis] * size;
    (bytes < 0 ? begin_ : end_) += static_cast<std::uintptr_t>(bytes);
  }
  end_ += static_cast<std::uintptr_t>(size);
}

bool MemoryRange::holds_an_end_of(const MemoryRange& other) const {
  const auto holds = [&](std::uintptr_t byte) { return begin_ <= byte && byte < end_; };
  return (holds(other.begin_) || holds(other.end_ - 1)) && is_dense(view_);
}

bool MemoryRange::surely_overlaps(const MemoryRange& other) const {
  if (begin_ >= other.end_ || other.begin_ >= end_) return false;  // nearly always
  return first_ == other.first_ || holds_an_end_of(other) || other.holds_an_end_of(*this);
}

}  // namespace quire
