// Computes lse with the same log on every ISA; std::fma is exact on all of them. Kernels layer.
#include "kernels/row_stats.h"

#include <cmath>
#include <limits>

#include "kernels/attention_order.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

template <class T>
void write_stats(const ForwardCall& call, const RowState<T>& state, int rows,
                 int64_t stat_offset) noexcept {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const T scale = static_cast<T>(call.scale);
  T (*const log)(T) noexcept = decode_functions<T>(*call.table).log;
  T* const lse = call.lse == nullptr ? nullptr : static_cast<T*>(call.lse) + stat_offset;
  T* const most =
      call.max_scores == nullptr ? nullptr : static_cast<T*>(call.max_scores) + stat_offset;
  T* const row_max =
      call.row_max == nullptr ? nullptr : static_cast<T*>(call.row_max) + stat_offset;
  T* const row_sum =
      call.row_sum == nullptr ? nullptr : static_cast<T*>(call.row_sum) + stat_offset;
  if (lse == nullptr && most == nullptr && row_max == nullptr && row_sum == nullptr) return;
  for (int row = 0; row < rows; ++row) {
    if (row_max != nullptr) row_max[row * call.stat_step] = state.m[row];
    if (row_sum != nullptr) row_sum[row * call.stat_step] = state.l[row];
    // Whether the maximum of -0 and +0 is -0 depends on the order of the keys; + 0 hides that.
    const T m = state.m[row] + T(0);
    if (lse != nullptr) {
      T& to = lse[row * call.stat_step];
      if (call.weights != WeightRule::kSoftmax) {
        to = state.l[row];
      } else if (call.lse_with_sinks && state.ended != nullptr) {
        const EndedRow<T>& ended = state.ended[row];
        to = ended.l == 0 ? ended.m : ended.m + log(ended.l);
      } else {
        const T log_l = log(state.l[row]);
        to = state.l[row] == 0 ? -kInf : call.natural ? m + log_l : std::fma(m, scale, log_l);
      }
    }
    if (most != nullptr) most[row * call.stat_step] = call.natural || m == -kInf ? m : m * scale;
  }
}

template void write_stats(const ForwardCall&, const RowState<float>&, int, int64_t) noexcept;
template void write_stats(const ForwardCall&, const RowState<double>&, int, int64_t) noexcept;

}  // namespace quire::kernels
