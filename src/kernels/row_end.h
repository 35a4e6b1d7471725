// What is done to a row's state when all its splits are folded and before it is divided by its sum:
// the sink is folded in, or, where a formula gave the weights, the sum counts only if asked. One
// definition, so every kernel and layout agrees. No SIMD. Kernels layer.
#pragma once
#include "kernels/forward_problem.h"

namespace quire::kernels {

/// A row's state at its end, m in natural units. O is multiplied by factor / l; l = 0: the output
/// is 0.
template <class T>
struct EndedRow {
  T m, l, factor;
};

/// Whether rows of a call must be ended; else their own m and l count, and the factor is 1.
inline bool has_end(const ForwardCall& call) noexcept {
  return call.sinks != nullptr || call.weights != WeightRule::kSoftmax;
}

/// `m` and `l` of a row of query head `h` whose splits are all folded, m in the call's form. A row
/// that saw nothing keeps l = 0; with sinks its m becomes the sink.
template <class T>
EndedRow<T> end_row(const ForwardCall& call, int64_t h, T m, T l) noexcept;

/// What keys and sink weigh in a row of query head `h`, together 1; `lse` is the call's: of the
/// keys alone, or with lse_with_sinks of all.
template <class T>
struct SinkShares {
  T keys, sink;
};
template <class T>
SinkShares<T> sink_shares(const ForwardCall& call, int64_t h, T lse) noexcept;

}  // namespace quire::kernels
