// The loop over tiles of keys: what is visible, bring the keys, scores, mods,
// softmax, values; folds at the end of splits, outputs at the end. All
// arithmetic is in the primitives of the ISA (forward_functions.h). Kernels
// layer.
#include "kernels/prefill.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "kernels/kernel_table.h"
#include "kernels/key_tile.h"
#include "kernels/row_kernel.h"
#include "kernels/row_stats.h"
#include "kernels/scratch_layout.h"
#include "kernels/tile_activity.h"
#include "kernels/visible_words.h"

namespace quire::kernels {
namespace {

// Keys between two calls of a score mod: their scores take 12 KiB, and the products go in sixes.
constexpr int kModRows = 48;

template <class T>
constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

template <class T>
const ForwardFunctions<T>& functions_of(const KernelTable& table) {
  if constexpr (std::is_same_v<T, double>)
    return *table.forward_f64;
  else
    return *table.forward_f32;
}

// Of one query tile: all splits so far, or the current one.
template <class T>
struct State {
  T *m, *l, *o;  // [64], [64], [64][columns]
};

template <class T>
struct Memory {
  KeyTileLoader<T> loader;
  T* scores;          // [4][kScorePanelStep]
  T* queries;         // [tiles][dims][64]; pairs: 32-bit elements, half as many
  size_t query_size;  // of one tile
  State<T> total[kMaxQueryTiles], split[kMaxQueryTiles];
  T* raw_max[kMaxQueryTiles];  // [64]
  T *max, *factor;             // [64]
  uint64_t* words;             // [tiles][256]
  uint64_t* more_words;        // [2][256]
  TileActivity* activity;      // [tiles]
  bool* wanted;                // [256]
  void *score_scratch, *mask_scratch, *row_scratch;

  Memory(const ForwardCall& call, const KeySequence& keys, int tiles, ScratchLayout& layout)
      : loader(call, keys, layout) {
    const auto columns = static_cast<size_t>(whole_panels(call.value_dims));
    const int elements = call.pairs ? (call.dims + 1) / 2 : call.dims;
    query_size = static_cast<size_t>(elements) * kQueryTile;
    scores = layout.take<T>(kQueryPanels * kScorePanelStep);
    queries = layout.take<T>(static_cast<size_t>(tiles) * query_size);
    for (int i = 0; i < tiles; ++i) {
      for (State<T>* state : {&total[i], &split[i]}) {
        state->m = layout.take<T>(kQueryTile);
        state->l = layout.take<T>(kQueryTile);
        state->o = layout.take<T>(kQueryTile * columns);
      }
      raw_max[i] = layout.take<T>(kQueryTile);
    }
    max = layout.take<T>(kQueryTile);
    factor = layout.take<T>(kQueryTile);
    words = layout.take<uint64_t>(static_cast<size_t>(tiles) * kTileKeys);
    more_words = layout.take<uint64_t>(2 * kTileKeys);
    activity = layout.take<TileActivity>(static_cast<size_t>(tiles));
    wanted = layout.take<bool>(kTileKeys);
    const auto program_bytes = [](const TileProgram* program) {
      return program == nullptr ? 0 : program->scratch_bytes;
    };
    score_scratch = layout.take<char>(program_bytes(call.prefill.score));
    mask_scratch = layout.take<char>(program_bytes(call.prefill.mask));
    // The last piece: its size only counts when scratch is sized.
    row_scratch = layout.take<char>(layout.counts_only() ? row_scratch_bytes(call) : 0);
  }
};

template <class T>
class Prefill {
 public:
  Prefill(const ForwardCall& call, const PrefillItem& item, Memory<T>& memory)
      : call_(call),
        item_(item),
        memory_(memory),
        functions_(functions_of<T>(*call.table)),
        scale_(static_cast<T>(call.scale)),
        columns_(static_cast<int>(whole_panels(call.value_dims))) {
    const TileFunctions& functions = call.f64 ? *call.table->tile_f64 : *call.table->tile_f32;
    if (call.prefill.score != nullptr)
      score_runner_.emplace(*call.prefill.score, functions, memory.score_scratch);
    if (call.prefill.mask != nullptr)
      mask_runner_.emplace(*call.prefill.mask, functions, memory.mask_scratch);
  }

  void run(TileFault& fault) noexcept {
    for (int i = 0; i < item_.tile_count; ++i) reset(memory_.total[i], i);
    for (int64_t begin = 0; begin < item_.keys.length; begin += kSplitKeys) {
      const int64_t end = std::min<int64_t>(begin + kSplitKeys, item_.keys.length);
      for (int i = 0; i < item_.tile_count; ++i) live_[i] = 0;
      for (int64_t key = begin; key < end; key += kTileKeys)
        run_tile(key, static_cast<int>(std::min<int64_t>(kTileKeys, end - key)));
      for (int i = 0; i < item_.tile_count; ++i) end_split(i);
    }
    for (int i = 0; i < item_.tile_count; ++i) finish(i, fault);
    for (const std::optional<TileRunner>* runner : {&score_runner_, &mask_runner_})
      if (runner->has_value() && (*runner)->fault().before(fault)) fault = (*runner)->fault();
  }

 private:
  static int panels_of(const QueryTile& tile) { return (tile.queries + kPanel - 1) / kPanel; }
  State<T>& current(int i) { return seen_[i] ? memory_.split[i] : memory_.total[i]; }
  uint64_t* words(int i) { return memory_.words + ptrdiff_t{i} * kTileKeys; }

  void reset(State<T>& state, int i) noexcept;
  void run_tile(int64_t key, int rows) noexcept;
  void find_visible(int i, int64_t key, int rows) noexcept;
  const bool* wanted_rows(int64_t key, int rows) noexcept;
  void load_queries(int i) noexcept;
  void compute_scores(int i, int64_t key, int rows, const KeyTile& keys) noexcept;
  void raw_scores(int i, const GroupActivity& block, const KeyTile& keys, T* max) noexcept;
  void begin_mods(int i, int64_t key, int rows) noexcept;
  void masked_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept;
  void modified_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept;
  void mask_scores(int i, const GroupActivity& block) noexcept;
  void hide_rows(const GroupActivity& group, int row_begin, int row_end) noexcept;
  void soften(int i, int rows, const KeyTile& keys) noexcept;
  void accumulate(int i, int panel, int rows, const KeyTile& keys) noexcept;
  void end_split(int i) noexcept;
  void finish(int i, TileFault& fault) noexcept;

  const ForwardCall& call_;
  const PrefillItem& item_;
  Memory<T>& memory_;
  const ForwardFunctions<T>& functions_;
  std::optional<TileRunner> score_runner_, mask_runner_;
  T scale_;
  int columns_;
  bool loaded_[kMaxQueryTiles] = {};    // queries are transposed
  bool seen_[kMaxQueryTiles] = {};      // `total` holds a split
  uint32_t live_[kMaxQueryTiles] = {};  // panels that saw a key in this split
  uint64_t slow_[kMaxQueryTiles] = {};  // rows for the row kernel
};

template <class T>
void Prefill<T>::reset(State<T>& state, int i) noexcept {
  const int lanes = panels_of(item_.tiles[i]) * kPanel;
  std::fill_n(state.m, lanes, kMinusInf<T>);
  std::fill_n(state.l, lanes, T(0));
  if (!seen_[i]) std::fill_n(memory_.raw_max[i], lanes, kMinusInf<T>);
}

template <class T>
void Prefill<T>::run_tile(int64_t key, int rows) noexcept {
  bool any = false;
  for (int i = 0; i < item_.tile_count; ++i) {
    find_visible(i, key, rows);
    any |= memory_.activity[i].any;
  }
  if (!any) return;
  const KeyTile keys = memory_.loader.bring(key, rows, wanted_rows(key, rows));
  for (int i = 0; i < item_.tile_count; ++i) {
    if (!memory_.activity[i].any) continue;
    if (live_[i] == 0 && seen_[i]) reset(memory_.split[i], i);
    if (!loaded_[i]) load_queries(i);
    compute_scores(i, key, rows, keys);
    soften(i, rows, keys);
  }
}

template <class T>
void Prefill<T>::find_visible(int i, int64_t key, int rows) noexcept {
  const QueryTile& tile = item_.tiles[i];
  uint64_t* const certain = words(i);
  VisibleWords found{certain, memory_.more_words};
  switch (find_visible_words(tile, key, rows, found)) {
    case Visibility::kNone:
      memory_.activity[i] = TileActivity();
      return;
    case Visibility::kAll:
      memory_.activity[i] = full_activity(rows, tile.queries);
      return;
    case Visibility::kSome:
      break;
  }
  const int begin = found.asked_begin, end = found.asked_end;
  if (begin < end && mask_runner_.has_value()) {
    uint64_t* const answers = memory_.more_words + kTileKeys;
    TileCoords at;
    at.start[0] = tile.b;
    at.start[1] = tile.h;
    at.start[2] = tile.q_idx;
    at.start[3] = key + begin;
    at.rows = end - begin;
    at.lanes = tile.queries;
    mask_runner_->begin(at);
    mask_runner_->mask(answers);
    for (int row = begin; row < end; ++row) certain[row] |= found.asked[row] & answers[row - begin];
  } else {  // without a mask program, partial means visible
    for (int row = begin; row < end; ++row) certain[row] |= found.asked[row];
  }
  memory_.activity[i] = find_activity(certain, rows, tile.queries);
}

// Null if keys can be read where they lie: nothing inside of what is computed
// is hidden from all. (Rows outside of every group are not read anyway.)
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
    const uint64_t existing = ~uint64_t{0} >> (64 - item_.tiles[i].queries);
    for (int row = 0; row < rows; ++row) memory_.wanted[row] |= (words(i)[row] & existing) != 0;
  }
  return memory_.wanted;
}

template <class T>
void Prefill<T>::load_queries(int i) noexcept {
  const QueryTile& tile = item_.tiles[i];
  const RowsView from{.data = static_cast<const char*>(call_.q) +
                              tile.q_offset * static_cast<int64_t>(dtype_size(call_.q_rows.dtype)),
                      .dtype = call_.q_rows.dtype,
                      .row_step = call_.q_rows.row_step,
                      .column_step = call_.q_rows.column_step,
                      .rows = tile.queries,
                      .columns = call_.dims};
  T* const to = memory_.queries + static_cast<size_t>(i) * memory_.query_size;
  if (call_.pairs)
    call_.table->pairs->load_queries(from, panels_of(tile), reinterpret_cast<uint32_t*>(to));
  else
    functions_.load_queries({from, panels_of(tile), to});
  loaded_[i] = true;
}

// Scores of all groups that have something visible; `max` of what is visible.
template <class T>
void Prefill<T>::compute_scores(int i, int64_t key, int rows, const KeyTile& keys) noexcept {
  const TileActivity& activity = memory_.activity[i];
  std::fill_n(memory_.max, kQueryTile, kMinusInf<T>);
  if (call_.natural) begin_mods(i, key, rows);
  // Neighbouring groups that look alike are one block.
  for (int g = 0; g < kKeyGroups;) {
    GroupActivity block = activity.groups[g++];
    if (block.empty()) continue;
    const int first = block.row_begin;
    while (g < kKeyGroups && (call_.natural || !block.masked)) {
      const GroupActivity& next = activity.groups[g];
      if (next.empty() || (next.masked && !call_.natural) || next.row_begin != block.row_end ||
          next.panel_begin != block.panel_begin || next.panel_end != block.panel_end)
        break;
      block.row_end = next.row_end;
      ++g;
    }
    if (call_.natural)
      modified_scores(i, block, keys);
    else
      masked_scores(i, block, keys);
    hide_rows(block, first / kKeyGroup * kKeyGroup, first);
    const int group_end = (block.row_end + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
    hide_rows(block, block.row_end, std::min(rows, group_end));
  }
}

// Scaled form: raw scores, hidden ones -inf.
template <class T>
void Prefill<T>::masked_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept {
  raw_scores(i, block, keys, block.masked ? nullptr : memory_.max);
  if (block.masked) mask_scores(i, block);
}

// Natural form: scaled scores through the score mod, hidden ones -inf; a few rows at a time, so
// that they are still in L1.
template <class T>
void Prefill<T>::modified_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept {
  const ScoreTile scores{.data = memory_.scores,
                         .row_step = kPanel * static_cast<ptrdiff_t>(sizeof(T)),
                         .group_step = 0,
                         .panel_step = kScorePanelStep * static_cast<ptrdiff_t>(sizeof(T))};
  GroupActivity part = block;
  for (int row = block.row_begin; row < block.row_end; row = part.row_end) {
    part.row_begin = static_cast<int16_t>(row);
    part.row_end = static_cast<int16_t>(std::min<int>(row + kModRows, block.row_end));
    raw_scores(i, part, keys, nullptr);
    if (score_runner_.has_value()) {
      score_runner_->apply(scores, part.row_begin, part.row_end, memory_.max,
                           memory_.activity[i].full ? nullptr : words(i));
    } else {
      mask_scores(i, part);
    }
  }
}

template <class T>
void Prefill<T>::mask_scores(int i, const GroupActivity& block) noexcept {
  functions_.mask_scores({.scores = memory_.scores + block.panel_begin * kScorePanelStep +
                                    ptrdiff_t{block.row_begin} * kPanel,
                          .rows = block.row_end - block.row_begin,
                          .panels = block.panel_end - block.panel_begin,
                          .first_lane = block.panel_begin * kPanel,
                          .words = words(i) + block.row_begin,
                          .max = memory_.max + block.panel_begin * kPanel});
}

template <class T>
void Prefill<T>::raw_scores(int i, const GroupActivity& block, const KeyTile& keys,
                            T* max) noexcept {
  const T* const queries = memory_.queries + static_cast<size_t>(i) * memory_.query_size;
  T* const scores =
      memory_.scores + block.panel_begin * kScorePanelStep + ptrdiff_t{block.row_begin} * kPanel;
  T* const lanes_max = max == nullptr ? nullptr : max + block.panel_begin * kPanel;
  const int rows = block.row_end - block.row_begin, panels = block.panel_end - block.panel_begin;
  if (call_.pairs) {
    if constexpr (std::is_same_v<T, float>) {
      call_.table->pairs->scores(
          {.keys = static_cast<const uint32_t*>(keys.keys) + block.row_begin * keys.key_step,
           .key_step = keys.key_step,
           .rows = rows,
           .dims = (call_.dims + 1) / 2,
           .panels = panels,
           .queries = reinterpret_cast<const uint32_t*>(queries) + block.panel_begin * kPanel,
           .scores = scores,
           .max = lanes_max,
           .scaled = call_.natural,
           .scale = static_cast<float>(scale_)});
    }
    return;
  }
  functions_.scores({.keys = static_cast<const T*>(keys.keys) + block.row_begin * keys.key_step,
                     .key_step = keys.key_step,
                     .rows = rows,
                     .dims = call_.dims,
                     .panels = panels,
                     .queries = queries + block.panel_begin * kPanel,
                     .scores = scores,
                     .max = lanes_max,
                     .scaled = call_.natural,
                     .scale = scale_});
}

// Rows of a group that nobody sees and that were not computed, next to some
// that were.
template <class T>
void Prefill<T>::hide_rows(const GroupActivity& group, int row_begin, int row_end) noexcept {
  for (int panel = group.panel_begin; panel < group.panel_end && row_begin < row_end; ++panel) {
    T* const scores = memory_.scores + panel * kScorePanelStep;
    std::fill(scores + ptrdiff_t{row_begin} * kPanel, scores + ptrdiff_t{row_end} * kPanel,
              kMinusInf<T>);
  }
}

// What the score mod computes once per tile; without one, everything is visible to mask_scores.
template <class T>
void Prefill<T>::begin_mods(int i, int64_t key, int rows) noexcept {
  if (!score_runner_.has_value()) {
    if (memory_.activity[i].full) std::fill_n(words(i), rows, ~uint64_t{0});
    return;
  }
  const QueryTile& tile = item_.tiles[i];
  TileCoords at;
  at.start[0] = tile.b;
  at.start[1] = tile.h;
  at.start[2] = tile.q_idx;
  at.start[3] = key;
  at.rows = rows;
  at.lanes = tile.queries;
  score_runner_->begin(at);
}

// Weights, the rescaling they ask for, and what they add to O, panel by panel.
template <class T>
void Prefill<T>::soften(int i, int rows, const KeyTile& keys) noexcept {
  State<T>& state = current(i);
  for (int lane = 0; lane < item_.tiles[i].queries; ++lane) {
    T& most = memory_.raw_max[i][lane];
    most = memory_.max[lane] > most ? memory_.max[lane] : most;
  }
  for (int panel = 0; panel < panels_of(item_.tiles[i]); ++panel) {
    uint32_t groups = 0;
    for (int g = 0; g < kKeyGroups; ++g) {
      const GroupActivity& group = memory_.activity[i].groups[g];
      if (!group.empty() && group.panel_begin <= panel && panel < group.panel_end)
        groups |= uint32_t{1} << g;
    }
    if (groups == 0) continue;
    functions_.softmax({.scores = memory_.scores + panel * kScorePanelStep,
                        .groups = groups,
                        .rows = rows,
                        .natural = call_.natural,
                        .scale = scale_,
                        .max = memory_.max + panel * kPanel,
                        .m = state.m + panel * kPanel,
                        .l = state.l + panel * kPanel,
                        .factor = memory_.factor + panel * kPanel});
    accumulate(i, panel, rows, keys);
    live_[i] |= uint32_t{1} << panel;
  }
}

// One call per stretch of keys without a gap.
template <class T>
void Prefill<T>::accumulate(int i, int panel, int rows, const KeyTile& keys) noexcept {
  const T* factor = (live_[i] >> panel & 1) != 0 ? memory_.factor + panel * kPanel : nullptr;
  T* const weights = memory_.scores + panel * kScorePanelStep;
  AccumulateArgs<T> args{.value_step = keys.value_step,
                         .queries = std::min(kPanel, item_.tiles[i].queries - panel * kPanel),
                         .columns = columns_,
                         .out = current(i).o + ptrdiff_t{panel} * kPanel * columns_,
                         .out_step = columns_};
  T ones[kPanel];
  std::fill_n(ones, kPanel, T(1));
  for (int g = 0; g < kKeyGroups;) {
    GroupActivity run = memory_.activity[i].groups[g++];
    if (run.empty() || panel < run.panel_begin || panel >= run.panel_end) continue;
    while (g < kKeyGroups) {
      const GroupActivity& next = memory_.activity[i].groups[g];
      if (next.empty() || next.row_begin != run.row_end || panel < next.panel_begin ||
          panel >= next.panel_end)
        break;
      run.row_end = next.row_end;
      ++g;
    }
    args.factor = factor;
    if (call_.pairs) {
      if constexpr (std::is_same_v<T, float>) {
        // Whole groups: rows that were not computed have weight 0 and values of
        // 0.
        const int begin = run.row_begin / kKeyGroup * kKeyGroup;
        const int end = std::min(rows, (run.row_end + kKeyGroup - 1) / kKeyGroup * kKeyGroup);
        call_.table->pairs->pair_weights(weights + ptrdiff_t{begin} * kPanel, end - begin);
        AccumulateArgs<float, uint32_t> pairs{
            .weights = reinterpret_cast<const uint32_t*>(weights) + ptrdiff_t{begin} * kPanel,
            .values = static_cast<const uint32_t*>(keys.values) + begin / 2 * keys.value_step,
            .value_step = keys.value_step,
            .keys = (end - begin + 1) / 2,
            .queries = args.queries,
            .columns = columns_,
            .out = args.out,
            .out_step = columns_,
            .factor = factor};
        call_.table->pairs->accumulate(pairs);
      }
    } else {
      args.weights = weights + ptrdiff_t{run.row_begin} * kPanel;
      args.values = static_cast<const T*>(keys.values) + run.row_begin * keys.value_step;
      args.keys = run.row_end - run.row_begin;
      functions_.accumulate(args);
    }
    factor = ones;
  }
}

template <class T>
void Prefill<T>::end_split(int i) noexcept {
  if (live_[i] == 0) return;
  const int queries = item_.tiles[i].queries;
  const State<T>& ended = current(i);
  for (int lane = 0; lane < queries; ++lane)
    if (needs_row_kernel(call_.natural, ended.m[lane], ended.l[lane]))
      slow_[i] |= uint64_t{1} << lane;
  if (seen_[i]) {
    functions_.fold({.m = memory_.total[i].m,
                     .l = memory_.total[i].l,
                     .o = memory_.total[i].o,
                     .split_m = ended.m,
                     .split_l = ended.l,
                     .split_o = ended.o,
                     .queries = queries,
                     .columns = columns_,
                     .step = columns_,
                     .natural = call_.natural});
  }
  seen_[i] = true;
}

template <class T>
void Prefill<T>::finish(int i, TileFault& fault) noexcept {
  const QueryTile& tile = item_.tiles[i];
  const State<T>& state = memory_.total[i];
  const ForwardTensor& out = call_.out_rows;
  const auto out_size = static_cast<int64_t>(dtype_size(out.dtype));
  uint64_t slow =
      functions_.finish({.l = state.l,
                         .o = state.o,
                         .step = columns_,
                         .queries = tile.queries,
                         .columns = call_.value_dims,
                         .out = static_cast<char*>(call_.out) + tile.out_offset * out_size,
                         .dtype = out.dtype,
                         .row_step = out.row_step,
                         .column_step = out.column_step});
  write_stats<T>(call_, {state.m, state.l, memory_.raw_max[i]}, tile.queries, tile.stat_offset);
  slow |= slow_[i];
  for (int lane = 0; lane < tile.queries; ++lane) {
    if ((slow >> lane & 1) == 0) continue;
    QueryRow row{.b = tile.b,
                 .h = tile.h,
                 .q_idx = tile.q_idx + lane,
                 .q_offset = tile.q_offset + lane * call_.q_rows.row_step,
                 .out_offset = tile.out_offset + lane * out.row_step,
                 .stat_offset = tile.stat_offset + lane,
                 .visible = {nullptr, -1}};
    for (int j = 0; j < tile.visible_count; ++j)
      if (tile.visible[j].lane_begin <= lane && lane < tile.visible[j].lane_end)
        row.visible = tile.visible[j].visible;
    compute_row(call_, item_.keys, row, memory_.row_scratch, fault);
  }
}

template <class T>
void run(const ForwardCall& call, const PrefillItem& item, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  Memory<T> memory(call, item.keys, item.tile_count, layout);
  Prefill<T>(call, item, memory).run(fault);
}

}  // namespace

int query_tiles_per_item(int dims, int value_dims) {
  return std::clamp(2048 / (dims + value_dims), 1, kMaxQueryTiles);
}

std::size_t prefill_scratch_bytes(const ForwardCall& call, int tile_count) {
  ScratchLayout layout(nullptr);
  if (call.f64)
    Memory<double>(call, {}, tile_count, layout);
  else
    Memory<float>(call, {}, tile_count, layout);
  return layout.bytes();
}

void prefill(const ForwardCall& call, const PrefillItem& item, void* scratch,
             TileFault& fault) noexcept {
  call.f64 ? run<double>(call, item, scratch, fault) : run<float>(call, item, scratch, fault);
}

}  // namespace quire::kernels
