// Converts rows to codes and back, chunks of rows on the executor. All arithmetic is in the
// primitives of the ISA (kernels/coding/). Quant layer.
#include "quire/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/coding/rotate.h"
#include "kernels/dispatch.h"
#include "kernels/typed_functions.h"
#include "quant/coded_view.h"
#include "quant/row_coding.h"
#include "quant/row_encoder.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/run_parallel.h"

namespace quire {
namespace {

// Rows of a tensor, counted row-major over all axes but the last.
struct Rows {
  Shape shape, strides;  // of the tensor
  std::int64_t count = 1;

  explicit Rows(const ConstTensorView& view) : shape(view.shape()), strides(view.strides()) {
    for (std::size_t axis = 0; axis + 1 < shape.rank(); ++axis) count *= shape[axis];
  }
  std::int64_t index(std::int64_t row, std::size_t axis) const {
    for (std::size_t i = shape.rank() - 1; i-- > axis + 1;) row /= shape[i];
    return row % shape[axis];
  }
  // Where it begins, in elements.
  std::int64_t offset(std::int64_t row) const {
    std::int64_t offset = 0;
    for (std::size_t axis = shape.rank() - 1; axis-- > 0;) {
      offset += row % shape[axis] * strides[axis];
      row /= shape[axis];
    }
    return offset;
  }
};

void check_tensor(const char* where, const Shape& shape, int head_axis) {
  if (shape.rank() < 2 || shape.rank() > 4) {
    fail(ErrorKind::value, where, "a tensor of keys or values has 2 to 4 axes; got {}",
         to_string(shape));
  }
  if (shape.rank() > 2 && (head_axis < 0 || head_axis + 1 >= static_cast<int>(shape.rank()))) {
    fail(ErrorKind::value, where, "head_axis must be an axis before the last of {}; got {}",
         to_string(shape), head_axis);
  }
}

// `head_axis` counts heads; of the other axes the last counts tokens and, with rank 4, the first
// batch entries.
quant::CodedAxes axes_of(std::size_t rank, int head_axis) {
  if (rank == 2) return {.batch = -1, .head = -1, .token = 0};
  if (rank == 3) return {.batch = -1, .head = head_axis, .token = head_axis == 0 ? 1 : 0};
  constexpr int kOthers[3][2] = {{1, 2}, {0, 2}, {0, 1}};
  return {.batch = kOthers[head_axis][0], .head = head_axis, .token = kOthers[head_axis][1]};
}

// Reads rows in the form the encoder takes.
struct RowReader {
  const ConstTensorView& from;
  const Rows& rows;
  quant::RowEncoder encoder;

  kernels::RowsView row(std::int64_t row) const {
    const auto size = static_cast<std::int64_t>(dtype_size(from.dtype()));
    return {.data = static_cast<const char*>(from.data()) + rows.offset(row) * size,
            .dtype = from.dtype(),
            .column_step = rows.strides[rows.shape.rank() - 1],
            .rows = 1,
            .columns = static_cast<int>(rows.shape[rows.shape.rank() - 1])};
  }
};

constexpr std::int64_t kChunkRows = 64;

float largest_code(KVStorage storage) {
  if (storage == KVStorage::kFp8E4M3) return 448;
  return storage == KVStorage::kFp8E5M2 ? 57344 : 127;
}

// Finds scales of channels or heads that map the largest number to the largest code.
Tensor find_scales(const RowReader& reader, const KVFormat& format, int head_axis,
                   Executor& executor) {
  const Rows& rows = reader.rows;
  const bool has_heads = rows.shape.rank() > 2;
  const std::int64_t dim = rows.shape[rows.shape.rank() - 1];
  const auto axis = static_cast<std::size_t>(head_axis);
  const std::int64_t heads = has_heads ? rows.shape[axis] : 1;
  const bool per_channel = format.scale == ScaleAxis::kChannel;
  Tensor scales(per_channel ? Shape{heads, dim} : Shape{heads}, DType::f32);
  run_parallel(executor, static_cast<std::size_t>(heads), [&](std::size_t head, std::size_t) {
    std::vector<float> row(static_cast<std::size_t>(dim)), largest(row.size(), 0);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      if (has_heads && rows.index(r, axis) != static_cast<std::int64_t>(head)) continue;
      reader.encoder.read(reader.row(r), row.data());
      for (std::size_t c = 0; c < row.size(); ++c)
        largest[c] = std::max(largest[c], std::fabs(row[c]));  // NaN is left to the encoder
    }
    float* const to = scales.data_as<float>();
    const float code = largest_code(format.storage);
    if (!per_channel) {
      to[head] = *std::max_element(largest.begin(), largest.end()) / code;
      return;
    }
    for (std::size_t c = 0; c < row.size(); ++c) to[head * row.size() + c] = largest[c] / code;
  });
  return scales;
}

void check_given(const ConstTensorView& scales) {
  const Tensor all = contiguous(scales);
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const float one = all.data_as<float>()[i];
    if (!(one >= 0) || !std::isfinite(one))
      fail(ErrorKind::value, "quantize", "scales must be finite and not negative; got {}", one);
  }
}

Shape with_last(Shape shape, std::int64_t last) {
  shape[shape.rank() - 1] = last;
  return shape;
}

// Memory for the scales of codes of this shape, if each row has its own.
Tensor room_for_scales(const KVFormat& format, Shape shape) {
  const std::int64_t dim = shape[shape.rank() - 1];
  shape.erase(shape.rank() - 1);
  if (format.scale == ScaleAxis::kGroup) shape.push_back(dim / kernels::kCodeGroup);
  if (format.offset != CodeOffset::kNone) shape.push_back(2);
  return Tensor(shape, format.scale_dtype());
}

[[noreturn]] void fail_row(const KVFormat& format, const Rows& rows, std::int64_t row) {
  Shape index;
  for (std::size_t axis = 0; axis + 1 < rows.shape.rank(); ++axis)
    index.push_back(rows.index(row, axis));
  fail(ErrorKind::value, "quantize", "row {} holds {}, which {} has no codes for", to_string(index),
       format.scale == ScaleAxis::kGroup ? "NaN, infinity or a number too large for a scale in f16"
                                         : "NaN or infinity",
       format.name());
}

}  // namespace

QuantizedTensor quantize(const ConstTensorView& x, const KVFormat& format,
                         const QuantizeOptions& options) {
  constexpr const char* kWhere = "quantize";
  const FloatEnv float_env;
  check_tensor(kWhere, x.shape(), options.head_axis);
  if (!is_floating(x.dtype()))
    fail(ErrorKind::type, kWhere, "x must be f32, f64, bf16 or f16; got {}", dtype_name(x.dtype()));
  if (format.is_plain()) fail(ErrorKind::value, kWhere, "plain has no codes; convert with to()");
  const std::int64_t dim = x.dim(-1);
  QuantizedTensor result{
      .codes = Tensor(with_last(x.shape(), format.code_bytes(dim)), format.code_dtype()),
      .scales = {},
      .format = format};
  const std::shared_ptr<Executor> executor = executor_of(options.executor);
  const Rows rows(x);
  const RowReader reader{x, rows, quant::RowEncoder(format, dim)};
  const bool shared = quant::has_given_scales(format);
  if (options.scales.has_value() && !shared)
    fail(ErrorKind::value, kWhere, "{} finds the scales of its rows; give none", format.name());
  if (shared) {
    result.scales = options.scales.has_value()
                        ? contiguous(*options.scales)
                        : find_scales(reader, format, options.head_axis, *executor);
  } else if (format.has_scales()) {
    result.scales = room_for_scales(format, x.shape());
  }
  const quant::CodedAxes axes = axes_of(x.rank(), options.head_axis);
  quant::check_coded(kWhere, "x", result, axes);
  if (options.scales.has_value()) check_given(result.scales);
  const ConstTensorView scales = quant::scales_of(result, axes);
  const auto scale_size = static_cast<std::int64_t>(dtype_size(format.scale_dtype()));
  const std::int64_t row_bytes = result.codes.dim(-1);
  auto* const codes = static_cast<std::byte*>(result.codes.data());
  auto* const scale_data = static_cast<std::byte*>(result.scales.data());
  std::atomic<std::int64_t> bad{rows.count};
  run_parallel(*executor, static_cast<std::size_t>(ceil_div(rows.count, kChunkRows)),
               [&](std::size_t chunk, std::size_t) {
                 const std::int64_t begin = static_cast<std::int64_t>(chunk) * kChunkRows;
                 for (std::int64_t r = begin; r < std::min(begin + kChunkRows, rows.count); ++r) {
                   std::int64_t scale = 0;
                   if (format.has_scales()) {
                     const auto at = [&](int axis, std::size_t of) {
                       return axis < 0 ? 0
                                       : rows.index(r, static_cast<std::size_t>(axis)) *
                                             scales.strides()[of];
                     };
                     scale = at(axes.batch, 0) + at(axes.head, 1) + at(axes.token, 2);
                   }
                   const int fits = reader.encoder.encode(
                       reader.row(r),
                       {.codes = codes + r * row_bytes, .scales = scale_data + scale * scale_size});
                   if (fits == 1) continue;
                   std::int64_t first = bad.load();
                   while (r < first && !bad.compare_exchange_weak(first, r)) {
                   }
                   return;
                 }
               });
  if (bad.load() < rows.count) fail_row(format, rows, bad.load());
  return result;
}

Tensor dequantize(const KVView& x, DType dtype, int head_axis, Executor* given) {
  constexpr const char* kWhere = "dequantize";
  const FloatEnv float_env;
  if (!is_floating(dtype))
    fail(ErrorKind::type, kWhere, "dtype must be f32, f64, bf16 or f16; got {}", dtype_name(dtype));
  if (x.format.is_plain()) return to(x.data, dtype);
  check_tensor(kWhere, x.data.shape(), head_axis);
  const quant::CodedAxes axes = axes_of(x.data.rank(), head_axis);
  quant::check_coded(kWhere, "x", x, axes);
  const std::shared_ptr<Executor> executor = executor_of(given);
  const kernels::KernelTable& table = kernels::current_table();
  const Shape shape = x.shape();
  const std::int64_t dim = shape[shape.rank() - 1];
  const kernels::RowCoding coding = quant::row_coding(x.format, dim);
  const ConstTensorView scales = quant::scales_of(x, axes);
  const auto scale_size = static_cast<std::int64_t>(dtype_size(x.format.scale_dtype()));
  const Rows rows(x.data);
  Tensor result = Tensor::empty(shape, DType::f32);
  auto* const out = result.data_as<float>();
  run_parallel(
      *executor, static_cast<std::size_t>(ceil_div(rows.count, kChunkRows)),
      [&](std::size_t chunk, std::size_t) {
        const std::int64_t begin = static_cast<std::int64_t>(chunk) * kChunkRows;
        for (std::int64_t r = begin; r < std::min(begin + kChunkRows, rows.count); ++r) {
          std::int64_t scale = 0;
          if (x.format.has_scales()) {
            const auto at = [&](int axis, std::size_t of) {
              return axis < 0
                         ? 0
                         : rows.index(r, static_cast<std::size_t>(axis)) * scales.strides()[of];
            };
            scale = at(axes.batch, 0) + at(axes.head, 1) + at(axes.token, 2);
          }
          float* const to = out + r * dim;
          kernels::decode_rows<float>(
              table, {.coding = coding,
                      .codes = static_cast<const char*>(x.data.data()) + rows.offset(r),
                      .scales = static_cast<const char*>(scales.data()) + scale * scale_size,
                      .rows = 1,
                      .columns = static_cast<int>(dim),
                      .out = to});
          kernels::rotate(to, static_cast<int>(dim), coding.rotation);
        }
      });
  return dtype == DType::f32 ? result : result.to(dtype);
}

}  // namespace quire
