// Whether views share memory, as far as addresses and strides show it. Tensor layer.
#pragma once
#include <cstdint>

#include "quire/tensor_view.h"

namespace quire {

/// The bytes between the first and the last element of a view, which must outlive it.
class MemoryRange {
 public:
  MemoryRange() = default;  // empty
  template <class Void>
  MemoryRange(const BasicTensorView<Void>& view)  // NOLINT(google-explicit-constructor)
      : MemoryRange(view.data(), view.dtype(), view.shape(), view.strides()) {}

  bool is_empty() const { return begin_ == end_; }
  // Of the view; not to be asked of MemoryRange().
  const Shape& shape() const { return *shape_; }
  const Shape& strides() const { return *strides_; }
  /// Whether several elements are one in memory (a stride of 0).
  bool repeats_an_element() const;
  /// Whether both begin at the same element, or one begins or ends in memory that the other fills
  /// without gaps. False for views that lie between each other's rows, as the parts of a packed
  /// tensor do.
  bool surely_overlaps(const MemoryRange& other) const;

 private:
  MemoryRange(const void* data, DType dtype, const Shape& shape, const Shape& strides);
  bool is_dense() const;
  bool holds_an_end_of(const MemoryRange& other) const;

  const Shape *shape_ = nullptr, *strides_ = nullptr;
  // Addresses as numbers: pointers into different arrays have no order.
  std::uintptr_t first_ = 0;            // of the element at index 0 of every axis
  std::uintptr_t begin_ = 0, end_ = 0;  // equal if there is no element
};

}  // namespace quire
