// IndexView: a tensor of i32 or i64 (offsets, lengths, page numbers, lists of keys), whose elements
// are read as i64. Tensor layer.
#pragma once
#include <cstdint>
#include <string_view>

#include "quire/error.h"
#include "quire/tensor_view.h"
#include "runtime/fail.h"

namespace quire {

/// Throws Error "[where] name must be i32 or i64; got ..." (kind type) for another dtype.
inline void check_indices(std::string_view where, std::string_view name,
                          const ConstTensorView& view) {
  if (view.dtype() != DType::i32 && view.dtype() != DType::i64)
    fail(ErrorKind::type, where, "{} must be i32 or i64; got {}", name, dtype_name(view.dtype()));
}

class IndexView {
 public:
  /// The view's dtype has been checked.
  explicit IndexView(const ConstTensorView& view)
      : data_(view.data()), is_wide_(view.dtype() == DType::i64) {}

  /// The number `at` elements after the first one of the view, in memory.
  std::int64_t operator[](std::int64_t at) const {
    return is_wide_ ? static_cast<const std::int64_t*>(data_)[at]
                    : static_cast<const std::int32_t*>(data_)[at];
  }

 private:
  const void* data_;
  bool is_wide_;
};

}  // namespace quire
