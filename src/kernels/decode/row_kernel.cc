// Computes one row, reading only the values it needs. No SIMD. Kernels layer.
#include "kernels/decode/row_kernel.h"

#include <algorithm>
#include <limits>

#include "kernels/decode/finish.h"
#include "kernels/decode/walk.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {
namespace {

// A visible NaN makes the whole row NaN, wherever its split stands in the fold.
template <class T>
void spoil(const DecodeState<T>& total) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  *total.m = *total.l = kNan;
  std::fill_n(total.o, total.columns, kNan);
}

template <class T>
void compute(const ForwardCall& call, const KeySequence& keys, const QueryRow& row, void* scratch,
             TileFault& fault) {
  ScratchLayout layout(scratch);
  DecodeWalk<T> walk(call, keys, &row, 1, ZeroWeights::kSkip, layout);
  const auto total = take_state<T>(1, call.value_dims, layout),
             split = take_state<T>(1, call.value_dims, layout);
  T* ordered = layout.take<T>(total.columns);
  clear_state(total, 1);
  for (int64_t i = 0; i * kSplitKeys < keys.length; ++i)
    if (walk.run_split(i, split)) fold_split(call, total, split, 1);
  walk.report(fault);
  if (walk.saw_nan()) spoil(total);
  finish_row(call, row, total, 0, unit_kind<T>(call, true), ordered);
}

template <class T>
std::size_t scratch_bytes(const ForwardCall& call) {
  ScratchLayout layout(nullptr);
  DecodeWalk<T>(call, {}, nullptr, 1, ZeroWeights::kSkip, layout);
  take_state<T>(1, call.value_dims, layout);
  const auto split = take_state<T>(1, call.value_dims, layout);
  layout.take<T>(split.columns);
  return layout.bytes();
}

}  // namespace

std::size_t row_scratch_bytes(const ForwardCall& call) {
  return call.f64 ? scratch_bytes<double>(call) : scratch_bytes<float>(call);
}

void compute_row(const ForwardCall& call, const KeySequence& keys, const QueryRow& row,
                 void* scratch, TileFault& fault) noexcept {
  if (call.f64)
    compute<double>(call, keys, row, scratch, fault);
  else
    compute<float>(call, keys, row, scratch, fault);
}

}  // namespace quire::kernels
