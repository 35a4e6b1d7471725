// Computes one row, reading only the values it needs. No SIMD. Kernels layer.
#include "kernels/decode/row_kernel.h"

#include <algorithm>
#include <limits>

#include "kernels/decode/finish.h"
#include "kernels/decode/walk.h"
#include "kernels/row_states.h"
#include "kernels/scratch_layout.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

// A visible NaN makes the whole row NaN, wherever its split stands in the fold.
template <class T>
void spoil(const DecodeState<T>& total) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  *total.m = *total.l = kNan;
  std::fill_n(total.o, total.columns, kNan);
}

// Folds splits [begin, end) into the state that is kept, or replaces their states in a run that
// keeps one per split.
template <class T>
void compute_states(const ForwardCall& call, const KeySequence& keys, const QueryRow& row,
                    int64_t begin, int64_t end, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  DecodeWalk<T> walk(call, keys, &row, 1, ZeroWeights::kSkip, layout);
  take_state<T>(1, call.value_dims, layout);
  const auto split = take_state<T>(1, call.value_dims, layout);
  T* const ordered = layout.take<T>(split.columns);
  const bool by_split = call.states.by_split;
  if (!by_split && !call.states.resumes)
    clear(state_of_row<T>(call, row.stat_offset), call.value_dims);
  for (int64_t i = begin; i < end; ++i) {
    const RunningState<T> total = state_of_row<T>(call, row.stat_offset, by_split ? i : 0);
    if (by_split) clear(total, call.value_dims);
    if (!walk.run_split(i, split)) continue;
    decode_functions<T>(*call.table)
        .reorder(unit_kind<T>(call, true), split.o, split.columns, ordered);
    fold(call, total, {split.m, split.l, ordered});
    if (!walk.saw_nan()) continue;
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    *total.m = *total.l = kNan;
    std::fill_n(total.o, call.value_dims, kNan);
    break;
  }
  walk.report(fault);
}

template <class T>
void compute(const ForwardCall& call, const KeySequence& keys, const QueryRow& row, void* scratch,
             TileFault& fault) {
  if (call.states.data != nullptr)
    return compute_states<T>(call, keys, row, 0, (keys.length + kSplitKeys - 1) / kSplitKeys,
                             scratch, fault);
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

void compute_split(const ForwardCall& call, const KeySequence& keys, const QueryRow& row,
                   int64_t split, void* scratch, TileFault& fault) noexcept {
  if (call.f64)
    compute_states<double>(call, keys, row, split, split + 1, scratch, fault);
  else
    compute_states<float>(call, keys, row, split, split + 1, scratch, fault);
}

}  // namespace quire::kernels
