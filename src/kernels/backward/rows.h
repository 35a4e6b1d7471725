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

/// Fills in lse [64] and delta [64] as BackwardTile wants them, and returns its `live`. delta = out
/// . d_out - d_lse. scratch: row_number_scratch elements.
template <class T>
uint64_t prepare_rows(const BackwardCall& call, const RowInputs& inputs, T* lse, T* delta,
                      T* scratch) noexcept;

/// Elements.
std::size_t prepare_rows_scratch(int value_dims);

}  // namespace quire::kernels
