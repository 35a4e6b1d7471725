// TensorView and ConstTensorView: memory owned elsewhere, seen as a tensor: pointer, dtype, shape
// and strides. Copies are cheap and no member allocates. Slicing, permuting and broadcasting make
// new views without touching elements. Public; tensor layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "quire/dtype.h"
#include "quire/export.h"
#include "quire/shape.h"

namespace quire {

// `Void` is void (elements may be written) or const void. Negative axes and indices count
// from the end. Misuse throws Error with the shapes in its text. The memory must outlive the
// view.
template <class Void>
class QUIRE_API BasicTensorView {
 public:
  template <class T>
  using Qualified = std::conditional_t<std::is_const_v<Void>, const T, T>;

  // An f32 view of shape [0].
  BasicTensorView();
  // Row-major.
  BasicTensorView(Void* data, DType dtype, const Shape& shape);
  // Strides in elements, of either sign; 0 repeats an element. `data` is the element at index 0 of
  // every axis, aligned for its type. Throws when ranks differ, a size is negative, the extent
  // overflows, or data is null and there are elements.
  BasicTensorView(Void* data, DType dtype, const Shape& shape, const Shape& strides);
  // A writable view converts to a read-only one.
  template <class Other>
    requires(std::is_const_v<Void> && std::is_same_v<Other, void>)
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()),
        dtype_(other.dtype()),
        shape_(other.shape()),
        strides_(other.strides()) {}

  Void* data() const noexcept { return data_; }
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  const Shape& strides() const noexcept { return strides_; }
  size_t rank() const noexcept { return shape_.rank(); }
  int64_t dim(int64_t axis) const { return shape_[checked_axis(axis)]; }
  int64_t stride(int64_t axis) const { return strides_[checked_axis(axis)]; }
  int64_t numel() const noexcept;
  // Whether elements lie in row-major order without gaps. Strides of axes of size 1 do not count;
  // true when empty.
  bool is_contiguous() const noexcept;

  // Elements begin, begin + step, ... before end of one axis; 0 <= begin <= end <= size after
  // wrapping, step >= 1.
  BasicTensorView slice(int64_t axis, int64_t begin, int64_t end, int64_t step = 1) const;
  // Fixes the index of one axis, which disappears.
  BasicTensorView select(int64_t axis, int64_t index) const;
  BasicTensorView transpose(int64_t axis_a, int64_t axis_b) const;
  // Axis i of the result is axis axes[i] of this one; each must appear once.
  BasicTensorView permute(std::span<const int64_t> axes) const;
  BasicTensorView permute(std::initializer_list<int64_t> axes) const {
    return permute(std::span(axes.begin(), axes.size()));
  }
  // Broadcasts: axes are added in front, and axes of size 1 repeat.
  BasicTensorView expand(const Shape& shape) const;
  // Inserts an axis of size 1 before `axis`, which is in -rank-1..rank.
  BasicTensorView unsqueeze(int64_t axis) const;
  // The same elements in the same row-major order under another shape; one size may be -1 and is
  // then computed. Throws when the number of elements differs, and when strides cannot express it
  // without a copy.
  BasicTensorView reshape(const Shape& shape) const;

  // The element at `indices`, checked: T must be the dtype's type, as many indices as axes, each
  // within its axis.
  template <Element T>
  Qualified<T>& at(std::span<const int64_t> indices) const {
    return data_as<T>()[checked_offset(indices)];
  }
  template <Element T>
  Qualified<T>& at(std::initializer_list<int64_t> indices) const {
    return at<T>(std::span(indices.begin(), indices.size()));
  }
  // data() as the dtype's type; throws for another type.
  template <Element T>
  Qualified<T>* data_as() const {
    check_dtype(dtype_of<T>);
    return static_cast<Qualified<T>*>(data_);
  }

  // The element at `indices` whatever its dtype, checked like at(). load_float converts integers
  // (int64 rounds) and bool; load_int accepts integers and bool, and throws for a floating dtype.
  double load_float(std::span<const int64_t> indices) const;
  double load_float(std::initializer_list<int64_t> indices) const {
    return load_float(std::span(indices.begin(), indices.size()));
  }
  int64_t load_int(std::span<const int64_t> indices) const;
  int64_t load_int(std::initializer_list<int64_t> indices) const {
    return load_int(std::span(indices.begin(), indices.size()));
  }

 private:
  size_t checked_axis(int64_t axis) const;
  int64_t checked_offset(std::span<const int64_t> indices) const;
  void check_dtype(DType wanted) const;
  Void* element(int64_t offset) const noexcept;

  Void* data_;
  DType dtype_;
  Shape shape_;
  Shape strides_;
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

extern template class BasicTensorView<void>;
extern template class BasicTensorView<const void>;

}  // namespace quire
