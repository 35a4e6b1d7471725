// Views derived from views: slice, select, transpose, permute, expand, unsqueeze, reshape. Only
// shapes and strides change; no element is read. Tensor layer.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "quire/error.h"
#include "quire/tensor_view.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"

namespace quire {
namespace {

// `wanted` with its -1, if any, replaced so that it has `count` elements.
Shape infer_size(const Shape& from, int64_t count, const Shape& wanted) {
  const auto hole = std::find(wanted.begin(), wanted.end(), -1);
  if (hole == wanted.end()) {
    if (element_count(wanted) == count) return wanted;
  } else {
    Shape inferred = wanted;
    int64_t& unknown = inferred[hole - wanted.begin()];
    unknown = 1;
    const int64_t rest = element_count(inferred);
    // With no elements, any size would fit the -1: rejected rather than guessed.
    if (rest != 0 && count % rest == 0) {
      unknown = count / rest;
      return inferred;
    }
  }
  fail(ErrorKind::value, "TensorView",
       "shape {} cannot be reshaped to {}: the number of elements differs", to_string(from),
       to_string(wanted));
}

// Strides under which the elements of (shape, strides) have the shape `wanted`, which has as many
// elements (not 0); nullopt if only a copy could. Axes are taken in groups of equal product, last
// first: within a group of old axes each stride must be the next one's stride times its size, and
// then the new axes divide that run among themselves.
std::optional<Shape> reshaped_strides(const Shape& shape, const Shape& strides,
                                      const Shape& wanted) {
  Shape result = wanted;
  size_t new_axis = wanted.rank();
  int64_t group = 1;   // elements of the run of old axes that ends here
  int64_t stride = 1;  // of the run's last axis
  int64_t taken = 1;   // elements of the run that new axes already describe
  const auto give = [&](bool last) {
    while (new_axis > 0 && (taken < group || wanted[new_axis - 1] == 1 || last)) {
      if (group % (taken * wanted[new_axis - 1]) != 0) return false;
      --new_axis;
      result[new_axis] = stride * taken;
      taken *= wanted[new_axis];
    }
    return taken == group;
  };
  bool begun = false;
  for (size_t axis = shape.rank(); axis-- > 0;) {
    if (shape[axis] == 1) continue;
    if (begun && strides[axis] == stride * group) {
      group *= shape[axis];
      continue;
    }
    if (begun && !give(false)) return std::nullopt;
    begun = true;
    group = shape[axis];
    stride = strides[axis];
    taken = 1;
  }
  if (!give(true)) return std::nullopt;
  return result;
}

}  // namespace

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::slice(int64_t axis, int64_t begin, int64_t end,
                                                   int64_t step) const {
  const size_t at = checked_axis(axis);
  const int64_t size = shape_[at];
  const int64_t first = begin < 0 ? begin + size : begin;
  const int64_t last = end < 0 ? end + size : end;
  if (first < 0 || first > last || last > size || step < 1) {
    fail(ErrorKind::index, "TensorView",
         "slice is out of range for axis {} of shape {}; got {}:{}:{}", at, to_string(shape_),
         begin, end, step);
  }
  BasicTensorView result = *this;
  result.shape_[at] = ceil_div(last - first, step);
  // With at most one element the stride means nothing, and stride * step could overflow.
  if (result.shape_[at] > 1) result.strides_[at] *= step;
  // An empty slice may begin one past the last element; its pointer stays inside.
  if (result.numel() > 0) result.data_ = element(first * strides_[at]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::select(int64_t axis, int64_t index) const {
  const size_t at = checked_axis(axis);
  const int64_t size = shape_[at];
  if (index < -size || index >= size) {
    fail(ErrorKind::index, "TensorView", "index is out of range for axis {} of shape {}; got {}",
         at, to_string(shape_), index);
  }
  BasicTensorView result = *this;
  result.shape_.erase(at);
  result.strides_.erase(at);
  if (result.numel() > 0) result.data_ = element((index < 0 ? index + size : index) * strides_[at]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::transpose(int64_t axis_a, int64_t axis_b) const {
  const size_t a = checked_axis(axis_a);
  const size_t b = checked_axis(axis_b);
  BasicTensorView result = *this;
  std::swap(result.shape_[a], result.shape_[b]);
  std::swap(result.strides_[a], result.strides_[b]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::permute(std::span<const int64_t> axes) const {
  std::array<bool, kMaxRank> seen{};
  BasicTensorView result = *this;
  bool ok = axes.size() == rank();
  for (size_t i = 0; ok && i < axes.size(); ++i) {
    const size_t axis = checked_axis(axes[i]);
    ok = !std::exchange(seen[axis], true);
    result.shape_[i] = shape_[axis];
    result.strides_[i] = strides_[axis];
  }
  if (!ok) {
    fail(ErrorKind::value, "TensorView", "permute needs each axis of shape {} once; got {}",
         to_string(shape_), axes.size() <= kMaxRank ? to_string(Shape(axes)) : "too many axes");
  }
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::expand(const Shape& shape) const {
  element_count(shape);
  const size_t added = shape.rank() - rank();
  bool ok = shape.rank() >= rank();
  BasicTensorView result = *this;
  result.shape_ = shape;
  result.strides_ = shape;
  for (size_t axis = 0; ok && axis < shape.rank(); ++axis) {
    const int64_t own = axis < added ? 1 : shape_[axis - added];
    ok = own == shape[axis] || own == 1;
    result.strides_[axis] = axis >= added && own == shape[axis] ? strides_[axis - added] : 0;
  }
  if (!ok) {
    fail(ErrorKind::value, "TensorView", "shape {} cannot be expanded to {}", to_string(shape_),
         to_string(shape));
  }
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::unsqueeze(int64_t axis) const {
  const int64_t count = rank();
  if (axis < -count - 1 || axis > count) {
    fail(ErrorKind::index, "TensorView", "axis is out of range to unsqueeze shape {}; got {}",
         to_string(shape_), axis);
  }
  const size_t at = axis < 0 ? axis + count + 1 : axis;
  BasicTensorView result = *this;
  result.shape_.insert(at, 1);
  result.strides_.insert(at, 0);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::reshape(const Shape& shape) const {
  BasicTensorView result = *this;
  result.shape_ = infer_size(shape_, numel(), shape);
  if (numel() == 0) {
    result.strides_ = contiguous_strides(result.shape_);
  } else if (const auto strides = reshaped_strides(shape_, strides_, result.shape_)) {
    result.strides_ = *strides;
  } else {
    fail(ErrorKind::value, "TensorView",
         "shape {} with strides {} cannot be reshaped to {} without a copy", to_string(shape_),
         to_string(strides_), to_string(result.shape_));
  }
  return result;
}

// The members defined in this file; the rest is instantiated in tensor_view.cc.
#define QUIRE_INSTANTIATE(Void)                                                                   \
  template BasicTensorView<Void> BasicTensorView<Void>::slice(int64_t, int64_t, int64_t, int64_t) \
      const;                                                                                      \
  template BasicTensorView<Void> BasicTensorView<Void>::select(int64_t, int64_t) const;           \
  template BasicTensorView<Void> BasicTensorView<Void>::transpose(int64_t, int64_t) const;        \
  template BasicTensorView<Void> BasicTensorView<Void>::permute(std::span<const int64_t>) const;  \
  template BasicTensorView<Void> BasicTensorView<Void>::expand(const Shape&) const;               \
  template BasicTensorView<Void> BasicTensorView<Void>::unsqueeze(int64_t) const;                 \
  template BasicTensorView<Void> BasicTensorView<Void>::reshape(const Shape&) const;
QUIRE_INSTANTIATE(void)
QUIRE_INSTANTIATE(const void)
#undef QUIRE_INSTANTIATE

}  // namespace quire
