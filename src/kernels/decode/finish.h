// From the states of splits to outputs, for rows whose keys lie across the lanes: folding, and
// writing out, lse and the largest score. Kernels layer.
#pragma once
#include "kernels/decode/walk.h"
#include "kernels/forward_problem.h"

namespace quire::kernels {

/// Folds the state of the next split into `total`, rows [0, row_count).
template <class T>
void fold_split(const ForwardCall& call, const DecodeState<T>& total, const DecodeState<T>& split,
                int row_count) noexcept;

/// Writes the outputs of a row from its state, O in the order of its columns. Returns whether all
/// of them are finite.
template <class T>
bool finish_ordered(const ForwardCall& call, const QueryRow& row, const T* m, const T* l,
                    T* o) noexcept;

/// Writes the outputs of row `index` of `total`. `ordered`: room for total.columns. Returns whether
/// all of them are finite.
template <class T>
bool finish_row(const ForwardCall& call, const QueryRow& row, const DecodeState<T>& total,
                int index, DecodeKind kind, T* ordered) noexcept;

}  // namespace quire::kernels
