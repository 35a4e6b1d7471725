// The row kernel: one query row computed again, for rows the fast kernels cannot finish: O is not
// finite (a key with weight 0 holds inf or NaN), a visible score is NaN, or the maximum is so large
// that the scaled form loses weights. Same order of arithmetic and same products as the other
// kernels, but values with weight exactly 0 are never read, so a row that was spoiled by a key it
// does not see gets the bits it has without that key. Only rows with a coarse maximum change their
// form, to the natural one. The result depends on the row alone. Slow and rare. Kernels layer.
#pragma once
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/attention_order.h"
#include "kernels/forward_problem.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// Whether a split in scaled form that ends with this maximum loses weights: 2^24 (f64: 2^53) <=
/// |m| < inf, where the steps of m are 2 or more.
template <class T>
bool is_coarse(T m) noexcept {
  constexpr T kCoarse = sizeof(T) == 4 ? static_cast<T>(kCoarseMax) : T{0x1p53};
  return std::fabs(m) >= kCoarse && std::fabs(m) < std::numeric_limits<T>::infinity();
}

/// Whether a row one of whose splits ends with this state must be computed by the row kernel.
template <class T>
bool needs_row_kernel(bool natural, T m, T l) noexcept {
  return std::isnan(l) || (!natural && is_coarse(m));
}

/// 64-byte aligned scratch.
std::size_t row_scratch_bytes(const ForwardCall& call);

/// Writes out, lse and max_scores of the row.
void compute_row(const ForwardCall& call, const KeySequence& keys, const QueryRow& row,
                 void* scratch, TileFault& fault) noexcept;

}  // namespace quire::kernels
