// One exponential and one logarithm per row, the same on every ISA. Kernels layer.
#include "kernels/backward/lse_correction.h"

#include <cmath>
#include <limits>

#include "kernels/attention_order.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

template <class T>
T lse_correction(const ForwardCall& call, int64_t h, T m, T l, T lse) noexcept {
  // Rounded, as scores are in the backward pass: a row that sees one key needs no correction.
  T from = call.natural ? m : m * static_cast<T>(call.scale);
  if (call.lse_with_sinks) {
    const EndedRow<T> ended = end_row(call, h, m, l);
    from = ended.m;
    l = ended.l;
  }
  if (!std::isfinite(from) || !std::isfinite(l) || l <= 0) return 1;
  const T distance = lse - from;
  const T rounded = std::numeric_limits<T>::epsilon() * std::abs(lse);
  if (!(std::abs(distance - decode_functions<T>(*call.table).log(l)) <= rounded)) return 1;
  const T weight = distance == 0
                       ? T(1)
                       : decode_functions<T>(*call.table).exp2(distance * static_cast<T>(kLog2e));
  const T correction = weight / l;
  return std::isfinite(correction) ? correction : 1;
}

template float lse_correction(const ForwardCall&, int64_t, float, float, float) noexcept;
template double lse_correction(const ForwardCall&, int64_t, double, double, double) noexcept;

}  // namespace quire::kernels
