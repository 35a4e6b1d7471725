// The C interface: formats of keys and values; quantises into the caller's memory and back. C API
// layer.
#include "quire/quantize.h"

#include <fmt/format.h>

#include <cstring>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "quire/error.h"

using namespace quire;

namespace {

// Copies into the caller's row-major memory of this shape and dtype.
void copy_out(const Tensor& from, const TensorView& to, const char* function, const char* name) {
  if (to.shape() != from.shape() || to.dtype() != from.dtype() || !to.is_contiguous()) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] {} must be row-major {} {}; got {} {}", function, name,
                            dtype_name(from.dtype()), to_string(from.shape()),
                            dtype_name(to.dtype()), to_string(to.shape())));
  }
  std::memcpy(to.data(), from.data(), from.numel() * dtype_size(from.dtype()));
}

}  // namespace

quire_status quire_kv_format_sizes(const char* format, int64_t head_dim, int64_t* code_bytes,
                                   int64_t* scale_count) {
  return c_api::guarded([&] {
    c_api::require(format, "quire_kv_format_sizes", "format");
    const KVFormat found = KVFormat::of(format);
    const std::int64_t bytes = found.code_bytes(head_dim), scales = found.scale_count(head_dim);
    if (code_bytes != nullptr) *code_bytes = bytes;
    if (scale_count != nullptr) *scale_count = scales;
  });
}

quire_status quire_quantize(const quire_tensor* x, const char* format, int32_t scales_given,
                            const quire_tensor* codes, const quire_tensor* scales) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_quantize";
    c_api::require(format, kName, "format");
    const KVFormat wanted = KVFormat::of(format);
    const bool given = c_api::flag(scales_given, kName, "scales_given");
    const TensorView to = c_api::tensor(codes, kName, "codes");
    QuantizeOptions options;
    if (given) options.scales = c_api::tensor(scales, kName, "scales");
    const QuantizedTensor made = quantize(c_api::tensor(x, kName, "x"), wanted, options);
    if (wanted.has_scales() && !given)
      copy_out(made.scales, c_api::tensor(scales, kName, "scales"), kName, "scales");
    if (!wanted.has_scales() && scales != nullptr)
      throw Error(ErrorKind::value, fmt::format("[{}] {} has no scales; give NULL", kName, format));
    copy_out(made.codes, to, kName, "codes");
  });
}

quire_status quire_dequantize(const quire_tensor* codes, const quire_tensor* scales,
                              const char* format, const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_dequantize";
    c_api::require(format, kName, "format");
    KVView view(c_api::tensor(codes, kName, "codes"));
    view.format = KVFormat::of(format);
    if (scales != nullptr) view.scales = c_api::tensor(scales, kName, "scales");
    const TensorView to = c_api::tensor(out, kName, "out");
    copy_out(dequantize(view, to.dtype()), to, kName, "out");
  });
}
