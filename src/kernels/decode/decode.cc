// Items of the decode kernel: splits one after the other, folded or stored, then outputs; and
// queries that take turns at every split. No SIMD. Kernels layer.
#include "kernels/decode/decode.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "kernels/decode/finish.h"
#include "kernels/decode/row_kernel.h"
#include "kernels/decode/walk.h"
#include "kernels/row_states.h"
#include "kernels/scratch_layout.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

// Stored states: m, l, then, aligned, O.
constexpr int kStateHead = 16;

template <class T>
DecodeState<T> stored_state(T* at, int value_dims) {
  return {at, at + 1, at + kStateHead, decode_columns(value_dims)};
}

// The scratch of both entry points.
template <class T>
struct Memory {
  DecodeState<T> total, split;
  T* ordered;
  void* row_scratch = nullptr;  // the rest, for the row kernel; its size matters only when counting

  Memory(const ForwardCall& call, int row_count, ScratchLayout& layout)
      : total(take_state<T>(row_count, call.value_dims, layout)),
        split(take_state<T>(row_count, call.value_dims, layout)),
        ordered(layout.take<T>(total.columns)) {}
};

// Rows that a split leaves to the row kernel.
template <class T>
uint32_t slow_rows(const DecodeState<T>& split, int row_count) {
  uint32_t slow = 0;
  for (int i = 0; i < row_count; ++i)
    if (needs_row_kernel(split.l[i])) slow |= 1u << i;
  return slow;
}

template <class T>
void finish_item(const ForwardCall& call, const DecodeItem& item, const Memory<T>& memory,
                 DecodeKind kind, uint32_t slow, TileFault& fault) {
  for (int i = 0; i < item.row_count; ++i) {
    const QueryRow& row = item.rows[i];
    if (slow >> i & 1 || !finish_row(call, row, memory.total, i, kind, memory.ordered))
      compute_row(call, item.keys, row, memory.row_scratch, fault);
  }
}

// The row's running state, in `memory.total`, with the columns of O in order.
template <class T>
RunningState<T> running_state(const DecodeState<T>& total, int i) {
  return {total.m + i, total.l + i, total.o + i * total.columns};
}

// Loads the rows' states from before these keys; clears them in a run that keeps no states.
template <class T>
void begin_total(const ForwardCall& call, const DecodeItem& item, const DecodeState<T>& total) {
  clear_state(total, item.row_count);
  for (int i = 0; call.states.resumes && i < item.row_count; ++i) {
    const RunningState<T> from = state_of_row<T>(call, item.rows[i].stat_offset);
    total.m[i] = *from.m;
    total.l[i] = *from.l;
    std::copy_n(from.o, total.columns, total.o + i * total.columns);
  }
}

// Folds a split's row into the running state of row `i`, which has its columns in order.
template <class T>
void fold_ordered(const ForwardCall& call, const Memory<T>& memory, int i,
                  const RunningState<T>& split) {
  decode_functions<T>(*call.table)
      .reorder(unit_kind<T>(call, true), split.o, memory.total.columns, memory.ordered);
  fold(call, running_state(memory.total, i), {split.m, split.l, memory.ordered});
}

// Stores running states instead of outputs.
template <class T>
void store_running(const ForwardCall& call, const DecodeItem& item, const Memory<T>& memory,
                   uint32_t slow, TileFault& fault) {
  for (int i = 0; i < item.row_count; ++i) {
    const QueryRow& row = item.rows[i];
    const RunningState<T> total = running_state(memory.total, i);
    if (slow >> i & 1 || !store(state_of_row<T>(call, row.stat_offset), *total.m, *total.l, total.o,
                                call.value_dims))
      compute_row(call, item.keys, row, memory.row_scratch, fault);
  }
}

template <class T>
void store_state(const DecodeState<T>& state, int row_count, int value_dims, T* to) {
  for (int i = 0; i < row_count; ++i, to += decode_state_size(value_dims)) {
    const DecodeState<T> stored = stored_state(to, value_dims);
    *stored.m = state.m[i];
    *stored.l = state.l[i];
    std::copy_n(state.o + i * state.columns, state.columns, stored.o);
  }
}

template <class T>
const T* prefix_state(const DecodeItem& item, int64_t split) {
  return static_cast<const T*>(item.prefix.states) + split * item.prefix.step;
}

// Folds row `i` of consecutive states into `total`; returns whether the row is a slow one.
template <class T>
uint32_t fold_stored(const ForwardCall& call, const DecodeState<T>& total, int i, const T* from) {
  // The state is only read here; there is no const form of its type.
  const DecodeState<T> stored = stored_state(const_cast<T*>(from), call.value_dims);
  DecodeState<T> row = total;
  row.m += i;
  row.l += i;
  row.o += i * row.columns;
  fold_split(call, row, stored, 1);
  return slow_rows(stored, 1) << i;
}

// Stores a state for every split, in a run that asks for that.
template <class T>
void store_splits(const ForwardCall& call, const DecodeItem& item, const Memory<T>& memory,
                  const SplitStates& states, TileFault& fault) {
  for (int64_t split = 0; split < states.splits; ++split) {
    const T* from = static_cast<const T*>(states.data) + split * states.step;
    for (int i = 0; i < item.row_count; ++i, from += decode_state_size(call.value_dims)) {
      const DecodeState<T> stored = stored_state(const_cast<T*>(from), call.value_dims);
      decode_functions<T>(*call.table)
          .reorder(unit_kind<T>(call, true), stored.o, stored.columns, memory.ordered);
      if (!store(state_of_row<T>(call, item.rows[i].stat_offset, split), *stored.m, *stored.l,
                 memory.ordered, call.value_dims))
        compute_split(call, item.keys, item.rows[i], split, memory.row_scratch, fault);
    }
  }
  // The longest sequence has more splits.
  for (int64_t split = states.splits; split < call.states.splits; ++split)
    for (int i = 0; i < item.row_count; ++i)
      clear(state_of_row<T>(call, item.rows[i].stat_offset, split), call.value_dims);
}

// Folds the splits that lie entirely in the prefix.
template <class T>
uint32_t fold_prefix(const ForwardCall& call, const DecodeItem& item, const DecodeState<T>& total) {
  uint32_t slow = 0;
  for (int64_t split = 0; split < item.prefix.tiles / kSplitTiles; ++split) {
    const T* from = prefix_state<T>(item, split);
    for (int i = 0; i < item.row_count; ++i, from += decode_state_size(call.value_dims))
      slow |= fold_stored(call, total, i, from);
  }
  return slow;
}

// Runs a split from its first tile, or from the end of the prefix. Returns whether anything was
// visible.
template <class T>
bool run_split(const ForwardCall& call, const DecodeItem& item, int64_t split, DecodeWalk<T>& walk,
               const DecodeState<T>& state) {
  if (item.prefix.tiles % kSplitTiles == 0 || split != item.prefix.tiles / kSplitTiles)
    return walk.run_split(split, state);
  clear_state(state, item.row_count);
  const T* from = prefix_state<T>(item, split);
  for (int i = 0; i < item.row_count; ++i, from += decode_state_size(call.value_dims)) {
    const DecodeState<T> stored = stored_state(const_cast<T*>(from), call.value_dims);
    state.m[i] = *stored.m;
    state.l[i] = *stored.l;
    std::copy_n(stored.o, state.columns, state.o + i * state.columns);
  }
  walk.run_tiles(item.prefix.tiles, (split + 1) * kSplitTiles, state);
  return true;
}

template <class T>
void decode_in(const ForwardCall& call, const DecodeItem& item, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  Memory<T> memory(call, item.row_count, layout);
  DecodeWalk<T> walk(call, item.keys, item.rows, item.row_count, ZeroWeights::kMultiply, layout);
  memory.row_scratch = layout.rest();
  if (item.states != nullptr) {
    T* to = static_cast<T*>(item.states);
    for (int64_t i = item.split_begin; i < item.split_end; ++i) {
      run_split(call, item, i, walk, memory.split);
      store_state(memory.split, item.row_count, call.value_dims, to);
      to += item.row_count * decode_state_size(call.value_dims);
    }
    return walk.report(fault);
  }
  begin_total(call, item, memory.total);
  uint32_t slow = fold_prefix(call, item, memory.total);
  const bool keeps = call.states.data != nullptr;
  for (int64_t i = item.split_begin; i < item.split_end; ++i) {
    if (!run_split(call, item, i, walk, memory.split)) continue;
    slow |= slow_rows(memory.split, item.row_count);
    if (!keeps) fold_split(call, memory.total, memory.split, item.row_count);
    for (int row = 0; keeps && row < item.row_count; ++row)
      fold_ordered(call, memory, row, running_state(memory.split, row));
  }
  walk.report(fault);
  if (keeps) return store_running(call, item, memory, slow, fault);
  finish_item(call, item, memory, unit_kind<T>(call, true), slow, fault);
}

// One query of a ChosenItem.
template <class T>
struct ChosenQuery {
  WalkRows<T> at;
  DecodeState<T> total, split;
  std::optional<ChosenAhead<T>> ahead;
  uint32_t slow = 0;
  bool sees = false;  // anything of this split
};

template <class T>
ChosenQuery<T>* take_queries(const ForwardCall& call, int queries, int row_count,
                             ScratchLayout& layout) {
  auto* const taken = layout.take<ChosenQuery<T>>(queries);
  for (int i = 0; i < queries; ++i) {
    ChosenQuery<T> made;
    made.total = take_state<T>(row_count, call.value_dims, layout);
    made.split = take_state<T>(row_count, call.value_dims, layout);
    made.at.queries = layout.take<T>(DecodeWalk<T>::query_elements(call, row_count));
    made.at.query_scales = layout.take<T>(call.integers ? padded_rows(row_count) : 0);
    if (!layout.counts_only()) std::construct_at(taken + i, made);
  }
  return taken;
}

// How the queries of an item take turns.
struct ChosenPace {
  int64_t begin = 0, end = 0;  // keys, of all lists
  int64_t tiles = kSplitTiles;
  // Whether every query prefetches its own keys, because hardly any other wants them. (Where two or
  // more want each key, on average, a step's keys are soon in L2, and asking for the next step's
  // gained nothing. With 128 queries of 64 of 8,192 keys that come from memory, which is one query
  // for each key, prefetching saves a quarter of the time.)
  bool prefetches = true;
};

ChosenPace pace_of(const ForwardCall& call, const ChosenItem& item) {
  ChosenPace pace{.begin = item.keys.length};
  int64_t keys = 0;
  for (int i = 0; i < item.queries * item.row_count; ++i) {
    const KeyList& list = item.rows[i].chosen;
    if (!list.is_choice()) return {.end = item.keys.length};
    if (list.count == 0) continue;
    pace.begin = std::min<int64_t>(pace.begin, list.keys[0]);
    pace.end = std::max<int64_t>(pace.end, list.keys[list.count - 1] + 1);
    if (i == 0 || list.keys != item.rows[i - 1].chosen.keys) keys += list.count;
  }
  pace.begin = std::min(pace.begin, pace.end);
  pace.prefetches = keys < 2 * (pace.end - pace.begin);
  const auto bytes = [](const ForwardTensor& rows, const RowCoding& coding, int columns) {
    return is_coded(coding) ? code_bytes(coding, columns)
                            : columns * static_cast<int64_t>(dtype_size(rows.dtype));
  };
  const int64_t tile =
      kTileKeys * (bytes(call.k_rows, call.k_coding, call.dims) +
                   (call.v_in_k ? 0 : bytes(call.v_rows, call.v_coding, call.value_dims)));
  while (!pace.prefetches && pace.tiles > 1 && 2 * pace.tiles * tile > item.l2_bytes)
    pace.tiles /= 2;
  return pace;
}

// Tiles [begin, end) for all queries.
template <class T>
void take_turns(DecodeWalk<T>& walk, int64_t begin, int64_t end,
                std::span<ChosenQuery<T>> queries) {
  for (ChosenQuery<T>& query : queries) {
    walk.turn_to(query.at);
    query.sees |= walk.run_tiles(begin, end, query.split);
    query.at.behind = walk.behind();
  }
}

template <class T>
void chosen_in(const ForwardCall& call, const ChosenItem& item, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  Memory<T> memory(call, item.row_count, layout);
  const std::span<ChosenQuery<T>> queries(
      take_queries<T>(call, item.queries, item.row_count, layout), item.queries);
  DecodeWalk<T> walk(call, item.keys, item.rows, item.row_count, ZeroWeights::kMultiply, layout);
  memory.row_scratch = layout.rest();
  const ChosenPace pace = pace_of(call, item);
  const bool keeps = call.states.data != nullptr;
  DecodeItem of_query{.keys = item.keys, .rows = item.rows, .row_count = item.row_count};
  for (ChosenQuery<T>& query : queries) {
    query.at.rows = of_query.rows;
    if (pace.prefetches) {
      query.ahead.emplace(walk.ahead_of(of_query.rows));
      query.at.ahead = &*query.ahead;
    }
    walk.load(query.at);
    begin_total(call, of_query, query.total);
    clear_state(query.split, item.row_count);
    of_query.rows += item.row_count;
  }
  for (int64_t split = pace.begin / kSplitKeys; split * kSplitKeys < pace.end; ++split) {
    for (int64_t tile = split * kSplitTiles; tile < (split + 1) * kSplitTiles; tile += pace.tiles)
      take_turns(walk, tile, tile + pace.tiles, queries);
    for (ChosenQuery<T>& query : queries) {
      if (!query.sees) continue;
      query.slow |= slow_rows(query.split, item.row_count);
      if (!keeps) fold_split(call, query.total, query.split, item.row_count);
      memory.total = query.total;
      for (int row = 0; keeps && row < item.row_count; ++row)
        fold_ordered(call, memory, row, running_state(query.split, row));
      clear_state(query.split, item.row_count);
      query.sees = false;
    }
  }
  walk.report(fault);
  for (const ChosenQuery<T>& query : queries) {
    of_query.rows = query.at.rows;
    memory.total = query.total;
    if (keeps)
      store_running(call, of_query, memory, query.slow, fault);
    else
      finish_item(call, of_query, memory, unit_kind<T>(call, true), query.slow, fault);
  }
}

template <class T>
std::size_t chosen_bytes(const ForwardCall& call) {
  std::size_t most = 0;
  for (int rows = 1; rows <= most_decode_rows(call); ++rows) {
    ScratchLayout layout(nullptr);
    Memory<T>(call, rows, layout);
    take_queries<T>(call, most_chosen_queries(rows), rows, layout);
    DecodeWalk<T>(call, {}, nullptr, rows, ZeroWeights::kMultiply, layout);
    most = std::max(most, layout.bytes());
  }
  return most + row_scratch_bytes(call);
}

template <class T>
void merge_in(const ForwardCall& call, const DecodeItem& item, const SplitStates& states,
              void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  Memory<T> memory(call, item.row_count, layout);
  memory.row_scratch = layout.rest();
  if (call.states.by_split) return store_splits(call, item, memory, states, fault);
  begin_total(call, item, memory.total);
  uint32_t slow = fold_prefix(call, item, memory.total);
  const bool keeps = call.states.data != nullptr;
  for (int64_t split = 0; split < states.splits; ++split) {
    const T* from = static_cast<const T*>(states.data) + split * states.step;
    for (int i = 0; i < item.row_count; ++i, from += decode_state_size(call.value_dims)) {
      if (!keeps) {
        slow |= fold_stored(call, memory.total, i, from);
        continue;
      }
      const DecodeState<T> stored = stored_state(const_cast<T*>(from), call.value_dims);
      slow |= slow_rows(stored, 1) << i;
      fold_ordered(call, memory, i, {stored.m, stored.l, stored.o});
    }
  }
  if (keeps) return store_running(call, item, memory, slow, fault);
  finish_item(call, item, memory, unit_kind<T>(call, true), slow, fault);
}

template <class T>
std::size_t scratch_bytes(const ForwardCall& call, int row_count) {
  ScratchLayout layout(nullptr);
  Memory<T>(call, row_count, layout);
  DecodeWalk<T>(call, {}, nullptr, row_count, ZeroWeights::kMultiply, layout);
  return layout.bytes() + row_scratch_bytes(call);
}

}  // namespace

int most_decode_rows(const ForwardCall& call) {
  if (call.f64 || call.table == nullptr || call.table->decode_f32->many_scores == nullptr)
    return kDecodeRows;
  for (const bool values : {false, true}) {
    switch (unit_kind<float>(call, values)) {
      case DecodeKind::kOwn:
      case DecodeKind::kBf16:
      case DecodeKind::kF16:
      case DecodeKind::kPairs:
        break;
      default:
        return kDecodeRows;
    }
  }
  return fuses_rope(call) ? kDecodeRows : kManyDecodeRows;
}

int64_t decode_state_size(int value_dims) { return kStateHead + decode_columns(value_dims); }

std::size_t decode_scratch_bytes(const ForwardCall& call, int row_count) {
  return call.f64 ? scratch_bytes<double>(call, row_count) : scratch_bytes<float>(call, row_count);
}

void decode(const ForwardCall& call, const DecodeItem& item, void* scratch,
            TileFault& fault) noexcept {
  if (call.f64)
    decode_in<double>(call, item, scratch, fault);
  else
    decode_in<float>(call, item, scratch, fault);
}

std::size_t chosen_scratch_bytes(const ForwardCall& call) {
  return call.f64 ? chosen_bytes<double>(call) : chosen_bytes<float>(call);
}

void decode_chosen(const ForwardCall& call, const ChosenItem& item, void* scratch,
                   TileFault& fault) noexcept {
  if (call.f64)
    chosen_in<double>(call, item, scratch, fault);
  else
    chosen_in<float>(call, item, scratch, fault);
}

void merge_splits(const ForwardCall& call, const DecodeItem& item, const SplitStates& states,
                  void* scratch, TileFault& fault) noexcept {
  if (call.f64)
    merge_in<double>(call, item, states, scratch, fault);
  else
    merge_in<float>(call, item, states, scratch, fault);
}

}  // namespace quire::kernels
