// Whether views share memory, as far as addresses and strides show it. Tensor layer.
#pragma once
#include <cstdint>

#include "quire/tensor_view.h"

namespace quire {

/// Whether several elements of the view are one in memory (a stride of 0).
bool repeats_an_element(const ConstTensorView& view);

/// The bytes between the first and the last element of a view, which must outlive it.
class MemoryRange {
 public:
  explicit MemoryRange(const ConstTensorView& view);

  bool is_empty() const { return begin_ == end_; }
  /// Whether both begin at the same element, or one begins or ends in memory that the other fills
  /// without gaps. False for views that lie between each other's rows, as the parts of a packed
  /// tensor do.
  bool surely_overlaps(const MemoryRange& other) const;

 private:
  bool holds_an_end_of(const MemoryRange& other) const;

  // Addresses as numbers: pointers into different arrays have no order.
  const ConstTensorView& view_;
  std::uintptr_t first_ = 0;            // of the element at index 0 of every axis
  std::uintptr_t begin_ = 0, end_ = 0;  // equal if there is no element
};

}  // namespace quire
