// Tensor: owns its elements, row-major, aligned to 64 bytes. It converts implicitly to a
// ConstTensorView; everything except ownership is done through views. Public; tensor
// layer.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "quire/dtype.h"
#include "quire/export.h"
#include "quire/shape.h"
#include "quire/tensor_view.h"

namespace quire {

// Copying shares the elements: a write through one copy is seen by all; clone() does not share.
// Threads may use copies concurrently as long as they do not write the same elements. A moved-from
// Tensor can only be assigned to or destroyed.
class QUIRE_API Tensor {
 public:
  // f32 of shape [0].
  Tensor();
  // All zero. Throws Error for a negative size or too many elements, std::bad_alloc when there is
  // no memory.
  Tensor(const Shape& shape, DType dtype);
  // Uninitialised elements. Throws as above.
  static Tensor empty(const Shape& shape, DType dtype);

  // Copies values, row-major; of rank 1 without a shape. Throws Error if their number does not
  // match the shape.
  template <Element T>
  static Tensor from(std::span<const T> values, const Shape& shape) {
    return copy_of(values.data(), values.size(), dtype_of<T>, shape);
  }
  template <Element T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <Element T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  template <Element T>
  static Tensor from(const std::vector<T>& values) {
    return from(values, {static_cast<int64_t>(values.size())});
  }
  template <Element T>
  static Tensor from(std::initializer_list<T> values) {
    return from(values, {static_cast<int64_t>(values.size())});
  }
  // std::vector<bool> has no contiguous elements.
  static Tensor from(const std::vector<bool>& values, const Shape& shape);
  static Tensor from(const std::vector<bool>& values);

  TensorView view() noexcept { return view_; }
  ConstTensorView view() const noexcept { return view_; }
  operator ConstTensorView() const noexcept {
    return view_;
  }  // NOLINT(google-explicit-constructor)

  void* data() noexcept { return view_.data(); }
  const void* data() const noexcept { return view_.data(); }
  DType dtype() const noexcept { return view_.dtype(); }
  const Shape& shape() const noexcept { return view_.shape(); }
  size_t rank() const noexcept { return view_.rank(); }
  int64_t dim(int64_t axis) const { return view_.dim(axis); }
  int64_t numel() const noexcept { return view_.numel(); }

  template <Element T>
  T* data_as() {
    return view_.data_as<T>();
  }
  template <Element T>
  const T* data_as() const {
    return view_.data_as<T>();
  }
  template <Element T>
  T& at(std::initializer_list<int64_t> indices) {
    return view_.at<T>(indices);
  }
  template <Element T>
  const T& at(std::initializer_list<int64_t> indices) const {
    return view_.at<T>(indices);
  }

  // A copy that shares nothing.
  Tensor clone() const;
  // Always a copy, even for the same dtype; the free function below has the rules.
  Tensor to(DType dtype) const;
  // Shares the elements. Same rules as BasicTensorView::reshape.
  Tensor reshape(const Shape& shape) const;

 private:
  Tensor(std::shared_ptr<void> memory, const TensorView& view);
  static Tensor copy_of(const void* values, size_t count, DType dtype, const Shape& shape);

  std::shared_ptr<void> memory_;
  TensorView view_;  // row-major over memory_
};

// A row-major copy of any view.
QUIRE_API Tensor contiguous(const ConstTensorView& view);

// A row-major copy with another dtype. To a float: nearest, ties to even, in one rounding. Float to
// integer: towards zero, saturating, NaN becomes 0. Integer to a narrower integer: wraps. To bool:
// whether it differs from 0 (NaN does).
QUIRE_API Tensor to(const ConstTensorView& view, DType dtype);

}  // namespace quire
