// RowPrefetch: prefetches rows that are needed soon into L2, a few at a time, while products keep
// the multipliers busy. Changes no result: rows it guesses wrong are not read. Kernels layer.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

class RowPrefetch {
 public:
  RowPrefetch() = default;
  /// Prefetches as many rows as `view` has, `distance` rows away from it. They need not exist. Does
  /// nothing if columns are not contiguous.
  RowPrefetch(const RowsView& view, int64_t distance)
      : step_(view.row_step * static_cast<ptrdiff_t>(dtype_size(view.dtype))),
        bytes_(static_cast<uintptr_t>(view.columns) * dtype_size(view.dtype)),
        next_(reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(distance * step_)),
        left_(view.column_step == 1 ? view.rows : 0) {}

  /// The next few rows. A core can have some 20 to 50 lines in flight.
  void bring_some() noexcept {
    for (int rows = std::min(left_, 4); rows > 0; --rows, --left_) {
      for (uintptr_t at = next_; at < next_ + bytes_; at += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
      next_ += static_cast<uintptr_t>(step_);
    }
  }

 private:
  ptrdiff_t step_ = 0;
  uintptr_t bytes_ = 0, next_ = 0;
  int left_ = 0;
};

}  // namespace quire::kernels
