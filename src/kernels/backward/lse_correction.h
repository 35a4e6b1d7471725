// Corrects the rounding of a large lse (plan/large_rows.h): the factor by which the weights of its
// row, and the shares of keys and sink, are off. No SIMD. Kernels layer.
#pragma once
#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/row_end.h"

namespace quire::kernels {

/// e^(lse - its value before rounding), for a row of query head `h` with `m` and `l` as end_row
/// takes them. 1 if these are not finite, or if `lse` differs from theirs by more than rounding.
template <class T>
T lse_correction(const ForwardCall& call, int64_t h, T m, T l, T lse) noexcept;

/// Corrects shares that were computed from a rounded lse.
template <class T>
SinkShares<T> corrected(const ForwardCall& call, const SinkShares<T>& shares,
                        T correction) noexcept {
  const T sink = shares.sink * correction;
  if (call.lse_with_sinks) return {1 - sink, sink};
  return {shares.keys / (shares.keys + sink), sink / (shares.keys + sink)};
}

}  // namespace quire::kernels
