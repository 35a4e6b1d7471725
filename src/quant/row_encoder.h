// RowEncoder: rows of floats to codes, as they are read: converted to f32, rotated if the format
// says so, coded by the primitives of the ISA. Quant layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/prefill/forward_functions.h"
#include "quant/row_coding.h"
#include "quire/kv_format.h"

namespace quire::quant {

/// Where codes and scales of rows go; steps in bytes. Scales of channels and heads are read, and
/// have a step of 0.
struct CodePlace {
  std::byte* codes = nullptr;
  std::ptrdiff_t code_step = 0;
  std::byte* scales = nullptr;
  std::ptrdiff_t scale_step = 0;
};

/// Whether each row finds its own scales; otherwise scales are given for all rows.
inline bool has_row_scales(const KVFormat& format) {
  return format.has_scales() &&
         (format.scale == ScaleAxis::kToken || format.scale == ScaleAxis::kGroup);
}
inline bool has_given_scales(const KVFormat& format) {
  return format.has_scales() && !has_row_scales(format);
}

class RowEncoder {
 public:
  /// `format` has codes, exists and fits the head dim.
  RowEncoder(const KVFormat& format, std::int64_t head_dim);

  /// Encodes all rows and returns the first that holds a number without a code (NaN, infinity, too
  /// large for a scale in f16), or how many rows there are. Allocates nothing.
  int encode(const kernels::RowsView& rows, const CodePlace& to) const noexcept;
  /// Returns the same without writing any codes.
  int first_without_code(const kernels::RowsView& rows) const noexcept;
  /// One row as f32, rotated: what encode converts to codes.
  void read(const kernels::RowsView& row, float* to) const noexcept;

 private:
  int read_some(const kernels::RowsView& rows, int first, float* to) const noexcept;

  const kernels::KernelTable& table_;
  kernels::RowCoding coding_;
  bool given_;
};

}  // namespace quire::quant
