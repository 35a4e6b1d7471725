// quantize and dequantize: tensors of keys and values to codes and back; KVView: a tensor of keys
// or values of any format, as attention takes it. Public; quant layer.
//
// Axes of codes are those of the numbers: [batch, heads, tokens, dim], [tokens, heads, dim] or
// [heads, tokens, dim] of jagged batches, [pages, heads, page_size, dim]. The last one has bytes:
//
//   int8, int8_channel                [.., dim] i8      u8, fp8_e4m3, fp8_e5m2   [.., dim] u8
//   int4 [.., dim / 2] u8             q8_0 [.., dim / 32 * 34] u8     q4_0 [.., dim / 32 * 18] u8
//
// Scales:  int8 [..] f32; u8 [.., 2] f32 (scale, zero point); int4 [.., dim / 32, 2] f16 (scale,
// minimum); int8_channel [heads, dim] f32; fp8 [heads] or [1] f32; none of q8_0 and q4_0.
#pragma once
#include <concepts>
#include <cstdint>
#include <optional>

#include "quire/executor.h"
#include "quire/export.h"
#include "quire/kv_format.h"
#include "quire/tensor.h"

namespace quire {

/// Codes, their scales and their format. Copies share memory.
struct QUIRE_API QuantizedTensor {
  Tensor codes;
  Tensor scales;  // of shape [0] if the format has none
  KVFormat format = {};

  /// Shape of the decoded numbers.
  Shape shape() const;
};

/// A view of keys or values: a tensor of floats, or codes with scales.
struct QUIRE_API KVView {
  KVView() = default;
  /// Plain numbers.
  template <class T>
    requires std::convertible_to<const T&, ConstTensorView>
  KVView(const T& tensor) : data(tensor) {}  // NOLINT(google-explicit-constructor)
  KVView(const QuantizedTensor& tensor)      // NOLINT(google-explicit-constructor)
      : data(tensor.codes), scales(tensor.scales), format(tensor.format) {}
  KVView(const ConstTensorView& codes, const ConstTensorView& code_scales, const KVFormat& of)
      : data(codes), scales(code_scales), format(of) {}

  ConstTensorView data;    // numbers or codes
  ConstTensorView scales;  // of shape [0] if there are none
  KVFormat format = {};

  /// Shape of the decoded numbers.
  Shape shape() const;
  /// What attention computes with: f32 for codes.
  DType dtype() const { return format.is_plain() ? data.dtype() : DType::f32; }
};

struct QuantizeOptions {
  /// For int8_channel and fp8: the scales, as above; derived from the numbers by default.
  std::optional<ConstTensorView> scales = {};
  int head_axis = 1;  // the axis of heads; a tensor of rank 2 has one head
  Executor* executor = nullptr;
};

/// x: floats of rank 2 to 4, any strides. Throws Error for NaN and infinity, numbers too large for
/// any scale of the format, a head dim that does not fit it, and scales of another shape or dtype.
QUIRE_API QuantizedTensor quantize(const ConstTensorView& x, const KVFormat& format,
                                   const QuantizeOptions& options = {});

/// The numbers that attention computes with (before the rotation, if rows are rotated), rounded to
/// `dtype`. A copy for plain tensors. Any strides, but the codes of a row must be contiguous.
QUIRE_API Tensor dequantize(const KVView& x, DType dtype = DType::f32, int head_axis = 1,
                            Executor* executor = nullptr);

}  // namespace quire
