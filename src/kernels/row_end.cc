// Folds in the sink with one exponential per row: the larger of sink and maximum has weight 1.
// Kernels layer.
#include "kernels/row_end.h"

#include <cmath>
#include <limits>

#include "kernels/attention_order.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

// e^(from - to), exactly 1 where both are equal, infinite ones included.
template <class T>
T weight(const ForwardCall& call, T from, T to) noexcept {
  if (from == to) return 1;
  return decode_functions<T>(*call.table).exp2((from - to) * static_cast<T>(kLog2e));
}

template <class T>
EndedRow<T> fold_sink(const ForwardCall& call, T sink, T m, T l) noexcept {
  if (l == 0) return {sink, 0, 0};
  const T natural = call.natural ? m : m * static_cast<T>(call.scale);
  if (sink <= natural) return {natural, l + weight(call, sink, natural), 1};
  const T factor = weight(call, natural, sink);  // NaN if an argument is
  return {sink, std::fma(l, factor, T(1)), factor};
}

}  // namespace

template <class T>
EndedRow<T> end_row(const ForwardCall& call, int64_t h, T m, T l) noexcept {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  if (call.sinks != nullptr) return fold_sink(call, static_cast<const T*>(call.sinks)[h], m, l);
  if (call.weights == WeightRule::kFormula) return {m, m == -kInf ? T(0) : T(1), 1};
  return {m, l, 1};
}

template <class T>
SinkShares<T> sink_shares(const ForwardCall& call, int64_t h, T lse) noexcept {
  const T sink = static_cast<const T*>(call.sinks)[h];
  if (call.lse_with_sinks) {
    const T share = weight(call, sink, lse);
    return {1 - share, share};
  }
  if (sink <= lse) {
    const T other = weight(call, sink, lse);
    return {1 / (1 + other), other / (1 + other)};
  }
  const T keys = weight(call, lse, sink);
  return {keys / (1 + keys), 1 / (1 + keys)};
}

template EndedRow<float> end_row(const ForwardCall&, int64_t, float, float) noexcept;
template EndedRow<double> end_row(const ForwardCall&, int64_t, double, double) noexcept;
template SinkShares<float> sink_shares(const ForwardCall&, int64_t, float) noexcept;
template SinkShares<double> sink_shares(const ForwardCall&, int64_t, double) noexcept;

}  // namespace quire::kernels
