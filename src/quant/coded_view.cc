// Checks the shapes and dtypes of codes and scales. Quant layer.
#include "quant/coded_view.h"

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {
namespace quant {
namespace {

// The shape that the scales of codes of this shape must have.
Shape scale_shape(const KVFormat& format, const Shape& numbers, const CodedAxes& axes) {
  const std::int64_t dim = numbers[numbers.rank() - 1];
  const std::int64_t heads = axes.head < 0 ? 1 : numbers[static_cast<std::size_t>(axes.head)];
  if (format.scale == ScaleAxis::kChannel) return {heads, dim};
  if (format.scale == ScaleAxis::kHead) return {heads};
  Shape shape = numbers;
  shape.erase(shape.rank() - 1);
  if (format.scale == ScaleAxis::kGroup) shape.push_back(dim / 32);
  if (format.offset != CodeOffset::kNone) shape.push_back(2);
  return shape;
}

bool is_for_all_heads(const KVFormat& format, const ConstTensorView& scales) {
  return format.scale == ScaleAxis::kHead && scales.numel() == 1 && scales.rank() <= 1;
}

// Whether the numbers of a row are contiguous.
bool rows_are_dense(const ConstTensorView& scales, std::size_t row_axes) {
  std::int64_t step = 1;
  for (std::size_t i = scales.rank(); i-- > scales.rank() - row_axes;) {
    if (scales.shape()[i] != 1 && scales.strides()[i] != step) return false;
    step *= scales.shape()[i];
  }
  return true;
}

std::size_t row_axes_of(const KVFormat& format) {
  if (format.scale == ScaleAxis::kChannel) return 1;
  if (format.scale == ScaleAxis::kHead) return 0;
  return (format.scale == ScaleAxis::kGroup ? 1u : 0u) +
         (format.offset != CodeOffset::kNone ? 1u : 0u);
}

}  // namespace

void check_coded(const char* where, const char* name, const KVView& view, const CodedAxes& axes) {
  const KVFormat& format = view.format;
  if (format.is_plain()) {
    if (view.scales.numel() != 0)
      fail(ErrorKind::value, where, "{} has scales, and no format says what they mean", name);
    return;
  }
  if (view.data.dtype() != format.code_dtype()) {
    fail(ErrorKind::type, where, "the codes of {} ({}) must be {}; got {}", name, format.name(),
         dtype_name(format.code_dtype()), dtype_name(view.data.dtype()));
  }
  const std::size_t last = view.data.rank() - 1;
  if (view.data.shape()[last] > 1 && view.data.strides()[last] != 1) {
    fail(ErrorKind::value, where,
         "the codes of a row of {} must lie side by side; got a stride of {}", name,
         view.data.strides()[last]);
  }
  const Shape numbers = view.shape();
  format.code_bytes(numbers[last]);  // throws if they do not fit
  if (!format.has_scales()) {
    if (view.scales.numel() != 0)
      fail(ErrorKind::value, where, "{} has its scales in its blocks; give none for {}",
           format.name(), name);
    return;
  }
  if (view.scales.dtype() != format.scale_dtype()) {
    fail(ErrorKind::type, where, "the scales of {} ({}) must be {}; got {}", name, format.name(),
         dtype_name(format.scale_dtype()), dtype_name(view.scales.dtype()));
  }
  const Shape wanted = scale_shape(format, numbers, axes);
  if (view.scales.shape() != wanted && !is_for_all_heads(format, view.scales)) {
    fail(ErrorKind::value, where, "the scales of {} ({} {}) must be {}{}; got {}", name,
         format.name(), to_string(numbers), to_string(wanted),
         format.scale == ScaleAxis::kHead ? " or [1]" : "", to_string(view.scales.shape()));
  }
  if (!rows_are_dense(view.scales, row_axes_of(format))) {
    fail(ErrorKind::value, where, "the scales of a row of {} must lie side by side; got strides {}",
         name, to_string(view.scales.strides()));
  }
}

ConstTensorView scales_of(const KVView& view, const CodedAxes& axes) {
  const KVFormat& format = view.format;
  if (!format.has_scales()) return {};
  const Shape& numbers = view.data.shape();
  const auto size = [&](int axis) {
    return axis < 0 ? std::int64_t{1} : numbers[static_cast<std::size_t>(axis)];
  };
  const ConstTensorView& scales = view.scales;
  const bool per_row = format.scale == ScaleAxis::kToken || format.scale == ScaleAxis::kGroup;
  const auto step = [&](int axis) {
    if (axis < 0) return std::int64_t{0};
    if (per_row) return scales.strides()[static_cast<std::size_t>(axis)];
    if (axis != axes.head || scales.rank() == 0 || is_for_all_heads(format, scales))
      return std::int64_t{0};
    return scales.strides()[0];
  };
  const std::int64_t count = format.scale_count(view.shape()[numbers.rank() - 1]);
  return ConstTensorView(scales.data(), scales.dtype(),
                         {size(axes.batch), size(axes.head), size(axes.token), count},
                         {step(axes.batch), step(axes.head), step(axes.token), 1});
}

}  // namespace quant

namespace {

Shape shape_of_numbers(const KVFormat& format, Shape shape) {
  if (format.is_plain() || shape.rank() == 0) return shape;
  shape[shape.rank() - 1] = format.head_dim(shape[shape.rank() - 1]);
  return shape;
}

}  // namespace

Shape QuantizedTensor::shape() const { return shape_of_numbers(format, codes.shape()); }
Shape KVView::shape() const { return shape_of_numbers(format, data.shape()); }

}  // namespace quire
