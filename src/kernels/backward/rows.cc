// Row operations, by the primitives of the ISA. Kernels layer.
#include "kernels/backward/rows.h"

#include <algorithm>
#include <limits>

#include "kernels/prefill/key_tile.h"
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
  return static_cast<std::size_t>(2 * kQueryTile * value_dims + kQueryTile);
}

template <class T>
uint64_t prepare_rows(const BackwardCall& call, const RowInputs& inputs, T* lse, T* delta,
                      T* scratch) noexcept {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const ForwardFunctions<T>& functions = forward_functions<T>(*call.forward.table);
  const int rows = inputs.lse.rows;
  const int dims = call.forward.value_dims, panels = (rows + kPanel - 1) / kPanel;
  T *const outs = scratch, *const d_outs = outs + kQueryTile * ptrdiff_t{dims},
           *const d_lse = d_outs + kQueryTile * ptrdiff_t{dims};
  std::fill_n(delta, kQueryTile, T(0));
  std::fill_n(d_lse, kQueryTile, T(0));
  if (inputs.d_out.data != nullptr) {
    functions.load_queries({inputs.out, panels, outs});
    functions.load_queries({inputs.d_out, panels, d_outs});
    backward_functions<T>(*call.forward.table).lane_dots({outs, d_outs, dims, panels, delta});
  }
  if (inputs.d_lse.data != nullptr) functions.copy_rows({inputs.d_lse, d_lse, 1, 1});
  functions.copy_rows({inputs.lse, lse, 1, 1});
  uint64_t live = 0;
  for (int row = 0; row < rows; ++row) {
    if (lse[row] == -kInf) {  // whatever out and the gradients hold
      lse[row] = kInf;
      delta[row] = 0;
      continue;
    }
    live |= uint64_t{1} << row;
    delta[row] -= d_lse[row];
  }
  std::fill(lse + rows, lse + kQueryTile, kInf);
  return live;
}

template void write_rows(const ForwardFunctions<float>&, const ScratchRows<float>&,
                         const GradientTensor&, int64_t) noexcept;
template void write_rows(const ForwardFunctions<double>&, const ScratchRows<double>&,
                         const GradientTensor&, int64_t) noexcept;
template uint64_t prepare_rows(const BackwardCall&, const RowInputs&, float*, float*,
                               float*) noexcept;
template uint64_t prepare_rows(const BackwardCall&, const RowInputs&, double*, double*,
                               double*) noexcept;

}  // namespace quire::kernels
