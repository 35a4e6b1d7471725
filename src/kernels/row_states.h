// The running state of a row after some of its keys (m, l, O as in attention_order.h), kept between
// runs, so that runs over consecutive keys give the bits of one run. Keys of a run begin at a
// multiple of kSplitKeys of the row's own keys, so that splits are the same. One layout for all
// kernels and ISAs: m, l, then O from kRowStateHead on, columns in order. A row that has seen
// nothing has m = -inf, l = 0, O = 0. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/forward_problem.h"

namespace quire::kernels {

inline constexpr int kRowStateHead = 16;

/// Columns of O in a state, in whole vectors of every ISA, and the elements of a state.
int row_state_columns(int value_dims);
int64_t row_state_size(int value_dims);

template <class T>
struct RunningState {
  T *m, *l, *o;
};

/// The state of a row, or of its split `split` in a run that keeps one per split.
template <class T>
RunningState<T> state_of_row(const ForwardCall& call, int64_t stat_offset, int64_t split = 0) {
  T* const at = static_cast<T*>(call.states.data) +
                (stat_offset * call.states.splits + split) * row_state_size(call.value_dims);
  return {at, at + 1, at + kRowStateHead};
}

/// A row that has seen nothing.
template <class T>
void clear(const RunningState<T>& state, int value_dims) noexcept;

/// Stores (m, l, O); O is not read if the row has seen nothing. Returns false and stores nothing if
/// something is not finite: that row is left to the row kernel.
template <class T>
bool store(const RunningState<T>& to, T m, T l, const T* o, int value_dims) noexcept;

/// Folds the next state into `total`.
template <class T>
void fold(const ForwardCall& call, const RunningState<T>& total,
          const RunningState<T>& next) noexcept;

/// Writes out, lse and max_scores of a row from its whole state. `state.o` may be changed.
template <class T>
void finish(const ForwardCall& call, const QueryRow& row, const RunningState<T>& state) noexcept;

/// The states of a row in the order of their keys, folded and written as outputs. scratch:
/// row_state_size elements.
void finish_states(const ForwardCall& call, const QueryRow& row, const void* const* states,
                   int64_t count, void* scratch) noexcept;

}  // namespace quire::kernels
