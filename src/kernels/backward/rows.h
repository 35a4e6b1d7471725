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

/// Rounds to the tensor's type; -0 becomes +0. `offset`: of the first row, in elements.
template <class T>
void write_rows(const ForwardFunctions<T>& functions, const ScratchRows<T>& from,
                const GradientTensor& to, int64_t offset) noexcept;

/// Up to 64 rows of a head. Views without data stand for 0.
struct RowInputs {
  RowsView lse = {}, d_lse = {};  // one column
  RowsView out = {}, d_out = {};  // out is not read without d_out
};

/// What prepare_rows fills in: BackwardTile's numbers, [64] each; share only for calls with sinks
/// and with corrections.
template <class T>
struct RowNumbers {
  T *lse = nullptr, *delta = nullptr, *share = nullptr;
  const T* corrections = nullptr;  // [64]: factor of e^(score - lse); null: 1
  uint64_t live = 0;
  T d_sink = 0;  // what the rows add to the gradient of their head's sink, one after the other
};

/// delta = out . d_out - d_lse. For weights W by a formula, whose sum l comes in as lse: lse
/// becomes their factor f, 1 or 1 / l, and D = f * (dP - delta) with delta = -d_lse, or out . d_out
/// - d_lse * l. With sinks and an lse of the keys alone: weights are as without sinks, share is the
/// keys' share, delta = share * (out . d_out) - d_lse. A correction multiplies share and delta, as
/// if it multiplied every weight of the row. scratch: prepare_rows_scratch elements. `h`: the head.
template <class T>
void prepare_rows(const BackwardCall& call, const RowInputs& inputs, int64_t h,
                  RowNumbers<T>& numbers, T* scratch) noexcept;

/// Elements.
std::size_t prepare_rows_scratch(int value_dims);

}  // namespace quire::kernels
