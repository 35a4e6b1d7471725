// Views: construction and checked element access. Views derived from views are in view_shapes.cc.
// Tensor layer.
#include "quire/tensor_view.h"

#include <limits>

#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "tensor/element.h"

namespace quire {
namespace {

// The distance in bytes from the first to the farthest element must fit into 63 bits, so that every
// address can be computed.
void check_extent(DType dtype, const Shape& shape, const Shape& strides) {
  if (element_count(shape) == 0) return;
  int64_t extent = 0;
  bool overflows = false;
  for (size_t axis = 0; axis < shape.rank(); ++axis) {
    int64_t part = 0;
    overflows |= __builtin_mul_overflow(shape[axis] - 1, strides[axis], &part);
    overflows |= part == std::numeric_limits<int64_t>::min();
    overflows = overflows || __builtin_add_overflow(extent, part < 0 ? -part : part, &extent);
  }
  const int64_t size = dtype_size(dtype);
  overflows = overflows || extent > std::numeric_limits<int64_t>::max() / size - 1;
  if (overflows) {
    fail(ErrorKind::value, "TensorView", "shape {} with strides {} does not fit into memory",
         to_string(shape), to_string(strides));
  }
}

}  // namespace

template <class Void>
BasicTensorView<Void>::BasicTensorView()
    : data_(nullptr), dtype_(DType::f32), shape_({0}), strides_({1}) {}

template <class Void>
BasicTensorView<Void>::BasicTensorView(Void* data, DType dtype, const Shape& shape)
    : BasicTensorView(data, dtype, shape, (element_count(shape), contiguous_strides(shape))) {}

template <class Void>
BasicTensorView<Void>::BasicTensorView(Void* data, DType dtype, const Shape& shape,
                                       const Shape& strides)
    : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {
  if (shape.rank() != strides.rank()) {
    fail(ErrorKind::value, "TensorView", "shape and strides must have the same rank; got {} and {}",
         to_string(shape), to_string(strides));
  }
  check_extent(dtype, shape, strides);
  if (data == nullptr && numel() > 0) {
    fail(ErrorKind::value, "TensorView", "data must not be null; got shape {}", to_string(shape));
  }
}

template <class Void>
int64_t BasicTensorView<Void>::numel() const noexcept {
  int64_t count = 1;  // cannot overflow: the constructor checked
  for (const int64_t size : shape_) {
    if (size == 0) return 0;
    count *= size;
  }
  return count;
}

template <class Void>
bool BasicTensorView<Void>::is_contiguous() const noexcept {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (size_t axis = rank(); axis-- > 0;) {
    if (shape_[axis] == 1) continue;
    if (strides_[axis] != expected) return false;
    expected *= shape_[axis];
  }
  return true;
}

template <class Void>
size_t BasicTensorView<Void>::checked_axis(int64_t axis) const {
  const int64_t count = rank();
  if (axis < -count || axis >= count) {
    fail(ErrorKind::index, "TensorView", "axis is out of range for shape {}; got {}",
         to_string(shape_), axis);
  }
  return axis < 0 ? axis + count : axis;
}

template <class Void>
int64_t BasicTensorView<Void>::checked_offset(std::span<const int64_t> indices) const {
  if (indices.size() != rank()) {
    fail(ErrorKind::index, "TensorView", "shape {} needs {} indices; got {}", to_string(shape_),
         rank(), indices.size());
  }
  int64_t offset = 0;
  for (size_t axis = 0; axis < rank(); ++axis) {
    const int64_t size = shape_[axis];
    const int64_t index = indices[axis];
    if (index < -size || index >= size) {
      fail(ErrorKind::index, "TensorView", "index is out of range for axis {} of shape {}; got {}",
           axis, to_string(shape_), index);
    }
    offset += (index < 0 ? index + size : index) * strides_[axis];
  }
  return offset;
}

template <class Void>
void BasicTensorView<Void>::check_dtype(DType wanted) const {
  if (dtype_ == wanted) return;
  fail(ErrorKind::type, "TensorView", "elements are {}; asked for {}", dtype_name(dtype_),
       dtype_name(wanted));
}

template <class Void>
Void* BasicTensorView<Void>::element(int64_t offset) const noexcept {
  if (data_ == nullptr) return nullptr;  // empty
  using Byte = Qualified<char>;
  return static_cast<Byte*>(data_) + offset * static_cast<int64_t>(dtype_size(dtype_));
}

template <class Void>
double BasicTensorView<Void>::load_float(std::span<const int64_t> indices) const {
  const FloatEnv float_env;
  const int64_t offset = checked_offset(indices);
  return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(load_element<T>(data_, offset));
  });
}

template <class Void>
int64_t BasicTensorView<Void>::load_int(std::span<const int64_t> indices) const {
  const int64_t offset = checked_offset(indices);
  if (is_floating(dtype_)) {
    fail(ErrorKind::type, "TensorView", "elements are {}; asked for an integer",
         dtype_name(dtype_));
  }
  return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
    return static_cast<int64_t>(load_element<T>(data_, offset));
  });
}

template class BasicTensorView<void>;
template class BasicTensorView<const void>;

}  // namespace quire
