// The last step on a row's state, after all splits are folded and before it is divided by its sum:
// the sink is folded in; where a formula gave the weights, the sum counts only if the rule asks for
// it. One definition, so every kernel and layout agrees. No SIMD. Kernels layer.
#pragma once
#include "kernels/forward_problem.h"

namespace quire::kernels {

/// A row's final state, m in natural units. O is multiplied by factor / l; l = 0: the output is 0.
template <class T>
struct EndedRow {
  T m, l, factor;
};

/// Whether the rows of a call need end_row; if not, m and l are final and the factor is 1.
inline bool has_end(const ForwardCall& call) noexcept {
  return call.sinks != nullptr || call.weights != WeightRule::kSoftmax;
}

/// Ends a row of query head `h` whose splits are all folded; `m` comes in the call's form. A row
/// that saw nothing keeps l = 0; with sinks its m becomes the sink.
template <class T>
EndedRow<T> end_row(const ForwardCall& call, int64_t h, T m, T l) noexcept;

/// The shares of keys and sink in the weights of a row of query head `h`; they add up to 1. `lse`
/// is the call's: of the keys alone, or of keys and sink with lse_with_sinks.
template <class T>
struct SinkShares {
  T keys, sink;
};
template <class T>
SinkShares<T> sink_shares(const ForwardCall& call, int64_t h, T lse) noexcept;

}  // namespace quire::kernels
