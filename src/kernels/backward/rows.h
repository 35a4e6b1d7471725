// Row operations before and after the chunks of the backward pass: lse and delta of every query
// row, and conversion of sums in compute type to their tensors. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/backward/problem.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

/// Rows of compute type in scratch.
template <class T>
struct ScratchRows {
  const T* data = nullptr;
  ptrdiff_t step = 0;
  int rows = 0, columns = 0;
};

/// Rounded to the tensor's type; -0 becomes +0. `offset`: of the first row, in elements.
template <class T>
void write_rows(const ForwardFunctions<T>& functions, const ScratchRows<T>& from,
                const GradientTensor& to, int64_t offset) noexcept;

/// Up to 64 rows of a head. Views without data: 0.
struct RowInputs {
  RowsView lse = {}, d_lse = {};  // one column
  RowsView out = {}, d_out = {};  // out is not read without d_out
};

/// What prepare_rows fills in: BackwardTile's numbers, [64] each; share only of calls with sinks
/// and with corrections.
template <class T>
struct RowNumbers {
  T *lse = nullptr, *delta = nullptr, *share = nullptr;
  const T* corrections = nullptr;  // [64]: by what e^(score - lse) must be multiplied; null: 1
  uint64_t live = 0;
  T d_sink = 0;  // what the rows add to the gradient of their head's sink, one after the other
};

/// delta = out . d_out - d_lse. Of a formula's weights W, whose sum l comes in as lse: the weights
/// are multiplied by 1, or by 1 / l, which is put into lse, and D = that * (dP - delta), delta =
/// -d_lse, or out . d_out - d_lse * l. With sinks, and lse of the keys alone: weights come out as
/// if there were none, share is what the keys weigh, delta = share * (out . d_out) - d_lse. A
/// correction multiplies share and delta, as if it multiplied every weight of the row.
/// scratch: prepare_rows_scratch elements. `h`: the head.
template <class T>
void prepare_rows(const BackwardCall& call, const RowInputs& inputs, int64_t h,
                  RowNumbers<T>& numbers, T* scratch) noexcept;

/// Elements.
std::size_t prepare_rows_scratch(int value_dims);

}  // namespace quire::kernels
