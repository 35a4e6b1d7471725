// The loop over tiles of keys: what is visible, loading keys, scores, mods, softmax, values;
// folds at the end of splits, outputs at the end. All arithmetic is in the primitives of the ISA
// (forward_functions.h). Kernels layer.
#include "kernels/prefill/prefill.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/bit_range.h"
#include "kernels/coding/rotate.h"
#include "kernels/decode/row_kernel.h"
#include "kernels/prefill/item.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/prefill/tile_activity.h"
#include "kernels/row_end.h"
#include "kernels/row_states.h"
#include "kernels/row_stats.h"
#include "kernels/scratch_layout.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

template <class T>
void Prefill<T>::run(TileFault& fault) noexcept {
  for (int i = 0; i < item_.tile_count; ++i) {
    reset(memory_.total[i], i);
    if (call_.states.resumes) load_states(i);
  }
  for (int64_t begin = 0; begin < item_.keys.length; begin += kSplitKeys) {
    const int64_t end = std::min<int64_t>(begin + kSplitKeys, item_.keys.length);
    for (int i = 0; i < item_.tile_count; ++i) live_[i] = 0;
    for (int64_t key = begin; key < end; key += kTileKeys)
      run_tile(key, static_cast<int>(std::min<int64_t>(kTileKeys, end - key)));
    for (int i = 0; i < item_.tile_count; ++i) end_split(i);
  }
  for (int i = 0; i < item_.tile_count; ++i) {
    if (item_.ahead != nullptr) item_.ahead->ask(item_.ahead->lines() / (item_.tile_count - i));
    finish(i, fault);
  }
  for (const TileFault* found :
       {score_runner_ ? &score_runner_->fault() : nullptr, memory_.visibility.fault()})
    if (found != nullptr && found->before(fault)) fault = *found;
}

template <class T>
void Prefill<T>::reset(PrefillState<T>& state, int i) noexcept {
  const int lanes = panels_of(item_.tiles[i]) * kPanel;
  std::fill_n(state.m, lanes, kMinusInf<T>);
  std::fill_n(state.l, lanes, T(0));
}

// Loads the rows' states from before these keys.
template <class T>
void Prefill<T>::load_states(int i) noexcept {
  const QueryTile& tile = item_.tiles[i];
  const PrefillState<T>& total = memory_.total[i];
  const bool turned = tiles_of(call_) != nullptr;  // O[column][query], panel by panel
  for (int lane = 0; lane < tile.queries; ++lane) {
    const RunningState<T> from = state_of_row<T>(call_, tile.stat_offset + lane * call_.stat_step);
    total.m[lane] = *from.m;
    total.l[lane] = *from.l;
    if (!turned) {
      std::copy_n(from.o, columns_, total.o + ptrdiff_t{lane} * columns_);
      continue;
    }
    T* const panel = total.o + ptrdiff_t{lane / kPanel} * kPanel * columns_ + lane % kPanel;
    for (int c = 0; c < columns_; ++c) panel[ptrdiff_t{c} * kPanel] = from.o[c];
  }
  seen_[i] = true;
}

template <class T>
void Prefill<T>::run_tile(int64_t key, int rows) noexcept {
  const bool remembers = item_.last_look != nullptr && item_.keys.length <= kTileKeys;
  bool any = false;
  for (int i = 0; i < item_.tile_count; ++i) {
    memory_.activity[i] =
        remembers ? memory_.visibility.look(item_.tiles[i], key, rows, words(i), *item_.last_look)
                  : memory_.visibility.look(item_.tiles[i], key, rows, words(i));
    any |= memory_.activity[i].any;
  }
  if (!any) return;
  const KeyTile keys = memory_.loader.load(key, rows, wanted_rows(key, rows));
  if (item_.ahead != nullptr) share_out(rows);
  for (int i = 0; i < item_.tile_count; ++i) {
    if (!memory_.activity[i].any) continue;
    if (live_[i] == 0 && seen_[i]) reset(memory_.split[i], i);
    if (loaded_[i]) continue;
    load_queries(i);
    ask_while_copying(i);
  }
  if (tiles_of(call_) != nullptr) return run_ahead(key, rows, keys);
  if (item_.keys_from_memory) plan_next_keys(key + rows);
  for (int i = 0; i < item_.tile_count; ++i) {
    if (!memory_.activity[i].any) continue;
    compute_scores(i, key, rows, keys);
    apply_softmax(i, key, rows, keys);
  }
}

// Null if keys can be read in place: no key among those computed is hidden from all queries. (Rows
// outside of every group are not read anyway.)
template <class T>
const bool* Prefill<T>::wanted_rows(int64_t key, int rows) noexcept {
  bool holes = false, all = false;
  for (int i = 0; i < item_.tile_count; ++i) {
    holes |= memory_.activity[i].any && memory_.activity[i].holes;
    all |= memory_.activity[i].full;
  }
  if (all) return nullptr;
  if (!holes && !memory_.loader.copies(key, rows)) return nullptr;
  std::fill_n(memory_.wanted, rows, false);
  for (int i = 0; i < item_.tile_count; ++i) {
    if (!memory_.activity[i].any) continue;
    const uint64_t existing = bits_between(0, item_.tiles[i].queries);
    for (int row = 0; row < rows; ++row) memory_.wanted[row] |= (words(i)[row] & existing) != 0;
  }
  const bool* const end = memory_.wanted + rows;
  return std::find<const bool*>(memory_.wanted, end, false) == end ? nullptr : memory_.wanted;
}

template <class T>
void Prefill<T>::load_queries(int i) noexcept {
  const QueryTile& tile = item_.tiles[i];
  RowsView from{.data = static_cast<const char*>(call_.q) +
                        tile.q_offset * static_cast<int64_t>(dtype_size(call_.q_rows.dtype)),
                .dtype = call_.q_rows.dtype,
                .row_step = call_.q_rows.row_step,
                .column_step = call_.q_rows.column_step,
                .rows = tile.queries,
                .columns = call_.dims};
  if (call_.rope.half > 0) {
    functions_.copy_rows({from, memory_.rotated, call_.dims, call_.dims});
    functions_.rotate({.tables = &call_.rope,
                       .rows = memory_.rotated,
                       .step = call_.dims,
                       .count = tile.queries,
                       .position = tile.q_idx});
    from.data = memory_.rotated;
    from.dtype = dtype_of<T>;
    from.row_step = call_.dims;
    from.column_step = 1;
  }
  T* const to = memory_.queries + static_cast<size_t>(i) * memory_.query_size;
  const int panels = panels_of(tile);
  loaded_[i] = true;
  if (call_.pairs && !call_.integers)
    return pair_functions(call_).load_queries(from, panels, reinterpret_cast<uint32_t*>(to));
  T* const numbers = call_.integers ? memory_.plain_queries : to;
  functions_.load_queries({from, panels, numbers});
  rotate(numbers, call_.dims, call_.k_coding.rotation, kQueryTile, panels * kPanel);
  if constexpr (std::is_same_v<T, float>) {
    if (call_.integers)
      pair_functions(call_).code_queries(
          {.queries = numbers,
           .dims = call_.dims,
           .panels = panels,
           .pairs = reinterpret_cast<uint32_t*>(to),
           .scales = memory_.query_scales + i * kQueryTile,
           .shift = integer_query_shift(call_.k_coding, call_.dims)});
  }
}

// Groups of keys of which a panel sees something.
template <class T>
uint32_t Prefill<T>::groups_of(int i, int panel) const noexcept {
  return memory_.activity[i].of_panel[panel];
}

// Computes weights, rescales O by their factors and adds weights x values, panel by panel.
template <class T>
void Prefill<T>::apply_softmax(int i, int64_t key, int rows, const KeyTile& keys) noexcept {
  for (int panel = 0; panel < panels_of(item_.tiles[i]); ++panel) {
    const uint32_t groups = groups_of(i, panel);
    if (groups == 0) continue;
    const SoftmaxArgs<T> args = softmax_args(i, panel, rows, groups);
    const bool paired = makes_pairs(keys);
    if constexpr (std::is_same_v<T, float>)
      if (paired) pair_functions(call_).softmax(args, memory_.pairs);
    if (!paired) weigh_in_place(i, panel, key, args);
    accumulate(i, panel, rows, keys);
    live_[i] |= uint32_t{1} << panel;
  }
}

template <class T>
SoftmaxArgs<T> Prefill<T>::softmax_args(int i, int panel, int rows, uint32_t groups) noexcept {
  PrefillState<T>& state = current(i);
  return {.scores = memory_.scores + panel * kScorePanelStep,
          .groups = groups,
          .rows = rows,
          .exponent_factor = exponent_factor_,
          .max = memory_.max + panel * kPanel,
          .m = state.m + panel * kPanel,
          .l = state.l + panel * kPanel,
          .factor = memory_.factor + panel * kPanel};
}

template <class T>
void Prefill<T>::weigh_in_place(int i, int panel, int64_t key,
                                const SoftmaxArgs<T>& args) noexcept {
  const bool by_softmax = call_.weights == WeightRule::kSoftmax;
  (by_softmax ? functions_.softmax : functions_.take_weights)(args);
  if (!drops_) return;
  const QueryTile& tile = item_.tiles[i];
  functions_.drop({.weights = args.scores,
                   .groups = args.groups,
                   .rows = args.rows,
                   .rule = &dropout_,
                   .place = dropout_place(tile.b, tile.h, tile.q_idx + panel * kPanel, key)});
}

template <class T>
void Prefill<T>::end_split(int i) noexcept {
  if (live_[i] == 0) return;
  const int queries = item_.tiles[i].queries;
  const PrefillState<T>& ended = current(i);
  for (int lane = 0; lane < queries; ++lane)
    if (needs_row_kernel(ended.l[lane])) slow_[i] |= uint64_t{1} << lane;
  if (seen_[i]) fold(i, ended);
  seen_[i] = true;
}

template <class T>
void Prefill<T>::fold(int i, const PrefillState<T>& ended) noexcept {
  const PrefillState<T>& total = memory_.total[i];
  FoldArgs<T> args{.m = total.m,
                   .l = total.l,
                   .o = total.o,
                   .split_m = ended.m,
                   .split_l = ended.l,
                   .split_o = ended.o,
                   .queries = item_.tiles[i].queries,
                   .columns = columns_,
                   .step = columns_,
                   .exponent_factor = exponent_factor_};
  if constexpr (std::is_same_v<T, float>) {
    if (const PairTiles* const tiles = tiles_of(call_)) {
      const int panels = panels_of(item_.tiles[i]), size = kPanel * columns_;
      for (int panel = 0; panel < panels; ++panel) {
        tiles->fold(args);
        args.m += kPanel, args.l += kPanel, args.o += size;
        args.split_m += kPanel, args.split_l += kPanel, args.split_o += size;
      }
      return;
    }
  }
  functions_.fold(args);
}

// Transposes O to rows, into the memory of the split's state, which is no longer needed.
template <class T>
void Prefill<T>::turn_outputs(int i) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    const PairTiles* const tiles = tiles_of(call_);
    if (tiles == nullptr) return;
    const ptrdiff_t size = ptrdiff_t{kPanel} * columns_;
    for (int panel = 0; panel < panels_of(item_.tiles[i]); ++panel)
      tiles->rows(memory_.total[i].o + panel * size, columns_, memory_.split[i].o + panel * size);
    std::swap(memory_.total[i].o, memory_.split[i].o);
  }
}

template <class T>
void Prefill<T>::finish(int i, TileFault& fault) noexcept {
  turn_outputs(i);
  if (call_.states.data != nullptr) return compute_again(i, store_states(i), fault);
  const QueryTile& tile = item_.tiles[i];
  const PrefillState<T>& state = memory_.total[i];
  const ForwardTensor& out = call_.out_rows;
  const int64_t out_size = dtype_size(out.dtype);
  for (int lane = 0; call_.v_coding.rotation > 1 && lane < tile.queries; ++lane)
    rotate(state.o + ptrdiff_t{lane} * columns_, call_.value_dims, call_.v_coding.rotation);
  EndedRow<T> ended[kQueryTile];
  T l[kQueryTile], factor[kQueryTile];
  const bool ends = has_end(call_);
  for (int lane = 0; ends && lane < tile.queries; ++lane) {
    ended[lane] = end_row<T>(call_, tile.h, state.m[lane], state.l[lane]);
    l[lane] = ended[lane].l;
    factor[lane] = ended[lane].factor;
  }
  uint64_t slow =
      functions_.finish({.l = ends ? l : state.l,
                         .o = state.o,
                         .step = columns_,
                         .queries = tile.queries,
                         .columns = call_.value_dims,
                         .factor = ends ? factor : nullptr,
                         .out = static_cast<char*>(call_.out) + tile.out_offset * out_size,
                         .dtype = out.dtype,
                         .row_step = out.row_step,
                         .column_step = out.column_step});
  write_stats<T>(call_, {state.m, state.l, ends ? ended : nullptr}, tile.queries, tile.stat_offset);
  compute_again(i, slow | slow_[i], fault);
}

// Stores states instead of outputs. Returns the rows left to the row kernel, whose states are
// unchanged.
template <class T>
uint64_t Prefill<T>::store_states(int i) noexcept {
  const QueryTile& tile = item_.tiles[i];
  const PrefillState<T>& total = memory_.total[i];
  uint64_t slow = slow_[i];
  for (int lane = 0; lane < tile.queries; ++lane) {
    if ((slow >> lane & 1) != 0) continue;
    const RunningState<T> to = state_of_row<T>(call_, tile.stat_offset + lane * call_.stat_step);
    const T* const o = total.o + ptrdiff_t{lane} * columns_;
    if (!store(to, total.m[lane], total.l[lane], o, call_.value_dims)) slow |= uint64_t{1} << lane;
  }
  return slow;
}

// Computes the rows in `slow` again, with the row kernel.
template <class T>
void Prefill<T>::compute_again(int i, uint64_t slow, TileFault& fault) noexcept {
  if (slow == 0) return;
  const QueryTile& tile = item_.tiles[i];
  const ForwardTensor& out = call_.out_rows;
  for (int lane = 0; lane < tile.queries; ++lane) {
    if ((slow >> lane & 1) == 0) continue;
    QueryRow row{.b = tile.b,
                 .h = tile.h,
                 .q_idx = tile.q_idx + lane,
                 .q_offset = tile.q_offset + lane * call_.q_rows.row_step,
                 .out_offset = tile.out_offset + lane * out.row_step,
                 .stat_offset = tile.stat_offset + lane * call_.stat_step,
                 .visible = {nullptr, -1}};
    for (int j = 0; j < tile.visible_count; ++j)
      if (tile.visible[j].lane_begin <= lane && lane < tile.visible[j].lane_end)
        row.visible = tile.visible[j].visible;
    if (tile.chosen != nullptr) row.chosen = tile.chosen[lane];
    compute_row(call_, item_.keys, row, memory_.row_scratch, fault);
  }
}

// Also for key_weights.cc and ahead.cc.
template const bool* Prefill<float>::wanted_rows(int64_t, int) noexcept;
template const bool* Prefill<double>::wanted_rows(int64_t, int) noexcept;
template void Prefill<float>::load_queries(int) noexcept;
template void Prefill<double>::load_queries(int) noexcept;
template SoftmaxArgs<float> Prefill<float>::softmax_args(int, int, int, uint32_t) noexcept;
template SoftmaxArgs<double> Prefill<double>::softmax_args(int, int, int, uint32_t) noexcept;
template void Prefill<float>::weigh_in_place(int, int, int64_t, const SoftmaxArgs<float>&) noexcept;
template void Prefill<double>::weigh_in_place(int, int, int64_t,
                                              const SoftmaxArgs<double>&) noexcept;
template uint32_t Prefill<float>::groups_of(int, int) const noexcept;
template uint32_t Prefill<double>::groups_of(int, int) const noexcept;

namespace {

template <class T>
void run(const ForwardCall& call, const PrefillItem& item, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  PrefillMemory<T> memory(call, item.keys, item.tile_count, layout);
  const PairScope scope(call);
  Prefill<T>(call, item, memory).run(fault);
}

}  // namespace

int query_tiles_per_item(int dims, int value_dims, int64_t l2_bytes) {
  constexpr int64_t kEnough = 1 << 20;
  const int64_t bytes = l2_bytes > 0 ? std::min(l2_bytes, kEnough) : kEnough;
  return static_cast<int>(
      std::clamp<int64_t>(bytes / 512 / (dims + value_dims), 1, kMaxQueryTiles));
}

std::size_t prefill_scratch_bytes(const ForwardCall& call, int tile_count) {
  ScratchLayout layout(nullptr);
  if (call.f64)
    PrefillMemory<double>(call, {}, tile_count, layout);
  else
    PrefillMemory<float>(call, {}, tile_count, layout);
  return layout.bytes();
}

void prefill(const ForwardCall& call, const PrefillItem& item, void* scratch,
             TileFault& fault) noexcept {
  call.f64 ? run<double>(call, item, scratch, fault) : run<float>(call, item, scratch, fault);
}

}  // namespace quire::kernels
