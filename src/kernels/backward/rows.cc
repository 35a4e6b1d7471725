// Row operations, by the primitives of the ISA. Kernels layer.
#include "kernels/backward/rows.h"

#include <algorithm>
#include <limits>

#include "kernels/backward/lse_correction.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/row_end.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

template <class T>
void write_rows(const ForwardFunctions<T>& functions, const ScratchRows<T>& from,
                const GradientTensor& to, int64_t offset) noexcept {
  T ones[kQueryTile];
  std::fill_n(ones, kQueryTile, T(1));
  const int64_t size = dtype_size(to.rows.dtype);
  for (int row = 0; row < from.rows; row += kQueryTile) {
    functions.finish({.l = ones,
                      .o = from.data + row * from.step,
                      .step = from.step,
                      .queries = std::min(kQueryTile, from.rows - row),
                      .columns = from.columns,
                      .out = static_cast<char*>(to.data) + (offset + row * to.rows.row_step) * size,
                      .dtype = to.rows.dtype,
                      .row_step = to.rows.row_step,
                      .column_step = to.rows.column_step});
  }
}

std::size_t prepare_rows_scratch(int value_dims) {
  return kQueryTile * (2 * static_cast<std::size_t>(value_dims) + 1);
}

namespace {

// Rows whose weights a formula gave; `lse` holds their sums and becomes the factor of the weights.
template <class T>
void prepare_formula(const ForwardCall& forward, int rows, const T* d_sum,
                     RowNumbers<T>& numbers) noexcept {
  numbers.live = 0;
  for (int row = 0; row < rows; ++row) {
    T &sum = numbers.lse[row], &delta = numbers.delta[row];
    if (forward.weights == WeightRule::kFormula) {
      sum = 1;
      delta = -d_sum[row];
    } else if (sum == 0) {  // the output is 0, whatever the weights are
      delta = 0;
      continue;
    } else {
      delta -= d_sum[row] * sum;
      sum = 1 / sum;
    }
    numbers.live |= uint64_t{1} << row;
  }
  std::fill(numbers.lse + rows, numbers.lse + kQueryTile, T(0));
}

}  // namespace

template <class T>
void prepare_rows(const BackwardCall& call, const RowInputs& inputs, int64_t h,
                  RowNumbers<T>& numbers, T* scratch) noexcept {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const ForwardCall& forward = call.forward;
  const ForwardFunctions<T>& functions = forward_functions<T>(*forward.table);
  const int rows = inputs.lse.rows;
  const int dims = forward.value_dims, panels = (rows + kPanel - 1) / kPanel;
  T *const outs = scratch, *const d_outs = outs + kQueryTile * ptrdiff_t{dims},
           *const d_lse = d_outs + kQueryTile * ptrdiff_t{dims};
  T *const lse = numbers.lse, *const delta = numbers.delta;
  std::fill_n(delta, kQueryTile, T(0));
  std::fill_n(d_lse, kQueryTile, T(0));
  if (inputs.d_out.data != nullptr) {
    functions.load_queries({inputs.out, panels, outs});
    functions.load_queries({inputs.d_out, panels, d_outs});
    backward_functions<T>(*forward.table).lane_dots({outs, d_outs, dims, panels, delta});
  }
  if (inputs.d_lse.data != nullptr) functions.copy_rows({inputs.d_lse, d_lse, 1, 1});
  functions.copy_rows({inputs.lse, lse, 1, 1});
  if (forward.weights != WeightRule::kSoftmax)
    return prepare_formula(forward, rows, d_lse, numbers);
  const bool sinks = forward.sinks != nullptr;
  if (sinks || numbers.corrections != nullptr) std::fill_n(numbers.share, kQueryTile, T(1));
  numbers.live = 0;
  numbers.d_sink = 0;
  for (int row = 0; row < rows; ++row) {
    if (lse[row] == -kInf) {  // whatever out and the gradients hold
      lse[row] = kInf;
      delta[row] = 0;
      continue;
    }
    const T correction = numbers.corrections == nullptr ? T(1) : numbers.corrections[row];
    if (sinks) {
      SinkShares<T> shares = sink_shares<T>(forward, h, lse[row]);
      if (correction != 1) shares = corrected(forward, shares, correction);
      if (forward.lse_with_sinks) {
        numbers.d_sink += shares.sink * (d_lse[row] - delta[row]);
      } else {
        numbers.d_sink -= shares.sink * delta[row];
        numbers.share[row] = shares.keys;
        delta[row] *= shares.keys;
      }
    }
    numbers.live |= uint64_t{1} << row;
    delta[row] = correction * (delta[row] - d_lse[row]);
    if (numbers.corrections != nullptr) numbers.share[row] *= correction;
  }
  std::fill(lse + rows, lse + kQueryTile, kInf);
}

template void write_rows(const ForwardFunctions<float>&, const ScratchRows<float>&,
                         const GradientTensor&, int64_t) noexcept;
template void write_rows(const ForwardFunctions<double>&, const ScratchRows<double>&,
                         const GradientTensor&, int64_t) noexcept;
template void prepare_rows(const BackwardCall&, const RowInputs&, int64_t, RowNumbers<float>&,
                           float*) noexcept;
template void prepare_rows(const BackwardCall&, const RowInputs&, int64_t, RowNumbers<double>&,
                           double*) noexcept;

}  // namespace quire::kernels
