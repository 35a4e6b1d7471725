// States kept between runs: loads, stores, folds. Folding and division are those of the other
// kernels. No SIMD. Kernels layer.
#include "kernels/row_states.h"

#include <algorithm>
#include <cmath>

#include "kernels/decode/finish.h"
#include "kernels/decode/walk.h"
#include "kernels/minus_infinity.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

int row_state_columns(int value_dims) { return decode_columns(value_dims); }

int64_t row_state_size(int value_dims) { return kRowStateHead + row_state_columns(value_dims); }

template <class T>
void clear(const RunningState<T>& state, int value_dims) noexcept {
  std::fill_n(state.m, kRowStateHead, T{0});
  *state.m = kMinusInf<T>;
  std::fill_n(state.o, row_state_columns(value_dims), T{0});
}

template <class T>
bool store(const RunningState<T>& to, T m, T l, const T* o, int value_dims) noexcept {
  if (m == kMinusInf<T>) {
    clear(to, value_dims);
    return true;
  }
  T check = l - l;  // 0, or NaN
  for (int c = 0; c < value_dims; ++c) check += o[c] - o[c];
  if (check != 0) return false;
  clear(to, value_dims);
  *to.m = m;
  *to.l = l;
  std::copy_n(o, value_dims, to.o);
  return true;
}

template <class T>
void fold(const ForwardCall& call, const RunningState<T>& total,
          const RunningState<T>& next) noexcept {
  const int columns = row_state_columns(call.value_dims);
  fold_split<T>(call, {total.m, total.l, total.o, columns}, {next.m, next.l, next.o, columns}, 1);
}

template <class T>
void finish(const ForwardCall& call, const QueryRow& row, const RunningState<T>& state) noexcept {
  finish_ordered(call, row, state.m, state.l, state.o);
}

namespace {

template <class T>
void finish_in(const ForwardCall& call, const QueryRow& row, const void* const* states,
               int64_t count, T* scratch) {
  const RunningState<T> total{scratch, scratch + 1, scratch + kRowStateHead};
  clear(total, call.value_dims);
  for (int64_t i = 0; i < count; ++i) {
    // The state is only read here; there is no const form of its type.
    T* const next = const_cast<T*>(static_cast<const T*>(states[i]));
    fold(call, total, {next, next + 1, next + kRowStateHead});
  }
  finish(call, row, total);
}

}  // namespace

void finish_states(const ForwardCall& call, const QueryRow& row, const void* const* states,
                   int64_t count, void* scratch) noexcept {
  if (call.f64)
    finish_in(call, row, states, count, static_cast<double*>(scratch));
  else
    finish_in(call, row, states, count, static_cast<float*>(scratch));
}

template void clear(const RunningState<float>&, int) noexcept;
template void clear(const RunningState<double>&, int) noexcept;
template bool store(const RunningState<float>&, float, float, const float*, int) noexcept;
template bool store(const RunningState<double>&, double, double, const double*, int) noexcept;
template void fold(const ForwardCall&, const RunningState<float>&,
                   const RunningState<float>&) noexcept;
template void fold(const ForwardCall&, const RunningState<double>&,
                   const RunningState<double>&) noexcept;
template void finish(const ForwardCall&, const QueryRow&, const RunningState<float>&) noexcept;
template void finish(const ForwardCall&, const QueryRow&, const RunningState<double>&) noexcept;

}  // namespace quire::kernels
