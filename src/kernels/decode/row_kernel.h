// The row kernel: one query row computed again, for rows the fast kernels cannot finish: O is not
// finite (a key with weight 0 holds inf or NaN), or a visible score is NaN. Same order of
// arithmetic and same products as the other kernels, but values with weight exactly 0 are never
// read, so a row that was spoiled by a key it does not see gets the bits it has without that key.
// The result depends on the row alone. Slow and rare. Kernels layer.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/forward_problem.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// Whether a row one of whose splits ends with this sum must be computed by the row kernel.
template <class T>
bool needs_row_kernel(T l) noexcept {
  return std::isnan(l);
}

/// 64-byte aligned scratch.
std::size_t row_scratch_bytes(const ForwardCall& call);

/// Writes out, lse and max_scores of the row; in a run that keeps states, all of the row's states.
void compute_row(const ForwardCall& call, const KeySequence& keys, const QueryRow& row,
                 void* scratch, TileFault& fault) noexcept;

/// Writes the state of one split, in a run that keeps a state per split.
void compute_split(const ForwardCall& call, const KeySequence& keys, const QueryRow& row,
                   int64_t split, void* scratch, TileFault& fault) noexcept;

}  // namespace quire::kernels
