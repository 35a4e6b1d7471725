// What rounding took from a large lse (plan/large_rows.h): by what the weights of its row, and the
// shares of keys and sink, are off. No SIMD. Kernels layer.
#pragma once
#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/row_end.h"

namespace quire::kernels {

/// e^(lse - what it was rounded from), of a row of query head `h` with `m` and `l` as end_row takes
/// them. 1 if they are not finite, or `lse` is not theirs within its roundings.
template <class T>
T lse_correction(const ForwardCall& call, int64_t h, T m, T l, T lse) noexcept;

/// Shares by a rounded lse, put right.
template <class T>
SinkShares<T> corrected(const ForwardCall& call, const SinkShares<T>& shares,
                        T correction) noexcept {
  const T sink = shares.sink * correction;
  if (call.lse_with_sinks) return {1 - sink, sink};
  return {shares.keys / (shares.keys + sink), sink / (shares.keys + sink)};
}

}  // namespace quire::kernels
