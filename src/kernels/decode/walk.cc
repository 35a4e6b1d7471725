// Walks tiles of keys for a few rows. All arithmetic is in the primitives of the ISA (functions.h).
// No SIMD. Kernels layer.
#include "kernels/decode/walk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/coding/rotate.h"
#include "kernels/minus_infinity.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

int whole_blocks(int columns) {
  return (columns + kDecodeColumns - 1) / kDecodeColumns * kDecodeColumns;
}

// Rows the primitives may write: blocks of 3 and 7 are computed as 4 and 8.
// Null while scratch is only counted.
template <class T>
const DecodeFunctions<T>* functions_of(const ForwardCall& call) {
  return call.table == nullptr ? nullptr : &decode_functions<T>(*call.table);
}

size_t program_bytes(const TileProgram* program) {
  return program == nullptr ? 0 : program->scratch_bytes;
}

}  // namespace

int decode_columns(int value_dims) { return whole_blocks(value_dims); }

template <class T>
DecodeState<T> take_state(int row_count, int value_dims, ScratchLayout& layout) {
  const size_t rows = padded_rows(row_count);
  DecodeState<T> state;
  state.columns = decode_columns(value_dims);
  state.m = layout.take<T>(rows);
  state.l = layout.take<T>(rows);
  state.o = layout.take<T>(rows * static_cast<size_t>(state.columns));
  return state;
}

template <class T>
void clear_state(const DecodeState<T>& state, int row_count) noexcept {
  const size_t rows = padded_rows(row_count);
  std::fill_n(state.m, rows, kMinusInf<T>);
  std::fill_n(state.l, rows, T{0});
  std::fill_n(state.o, rows * static_cast<size_t>(state.columns), T{0});
}

template <class T>
DecodeWalk<T>::DecodeWalk(const ForwardCall& call, const KeySequence& keys, const QueryRow* rows,
                          int row_count, ZeroWeights zero_weights, ScratchLayout& layout)
    : call_(call),
      sequence_(keys),
      rows_(rows),
      row_count_(row_count),
      zero_weights_(zero_weights),
      functions_(functions_of<T>(call)),
      keys_(call, keys, false, layout),
      values_(call, keys, true, layout),
      visible_(call, rows, row_count, layout),
      scale_(static_cast<T>(call.scale)),
      drops_(call.dropout.p > 0),
      query_step_(whole_blocks(call.dims)) {
  if (drops_) dropout_ = dropout_rule(call.dropout);
  const size_t padded = padded_rows(row_count);
  query_memory_ = layout.take<T>(padded * static_cast<size_t>(query_step_));
  query_row_ = layout.take<T>(query_step_);
  scores_ = layout.take<T>(padded * kDecodeScoreStep);
  const bool chooses = call.chooses;
  compact_ = layout.take<T>(chooses ? padded * kDecodeScoreStep : 0);
  // Compacted keys are not at consecutive positions, which rotation on read requires.
  compacts_ = chooses && zero_weights == ZeroWeights::kMultiply && call.rope.half == 0 &&
              (!call.pairs ||
               (keys_.kind() == DecodeKind::kIntegers && values_.kind() == DecodeKind::kIntegers));
  const auto columns = static_cast<size_t>(decode_columns(call.value_dims));
  chain_ = layout.take<T>(values_.kind() == DecodeKind::kTiles ? tile_chain_size(row_count, columns)
                                                               : padded * columns);
  pair_weights_ = call.pairs ? layout.take<uint16_t>(padded * kDecodeScoreStep) : nullptr;
  query_scales_ = layout.take<T>(call.integers ? padded : 0);
  weight_scales_ = layout.take<T>(call.integers ? padded : 0);
  const bool has_score = call.decode.score != nullptr;
  score_max_ = layout.take<T>(has_score ? padded * kGroupLanes : 0);
  batches_ = layout.take<int64_t>(padded);
  heads_ = layout.take<int64_t>(padded);
  queries_ = layout.take<int64_t>(padded);
  void* scratch = layout.take<char>(program_bytes(call.decode.score));
  if (rows == nullptr) return;  // counting
  load_queries();
  // Padding rows have weight 0.
  std::fill_n(scores_, padded * kDecodeScoreStep, T{0});
  if (chooses) std::fill_n(compact_, padded * kDecodeScoreStep, T{0});
  if (pair_weights_ != nullptr) std::fill_n(pair_weights_, padded * kDecodeScoreStep, 0);
  if (call.integers) std::fill_n(weight_scales_, padded, T{0});
  for (int i = 0; i < row_count; ++i) {
    batches_[i] = rows[i].b;
    heads_[i] = rows[i].h;
    queries_[i] = rows[i].q_idx;
    keeps_ |= rows[i].kept_scores != nullptr;
  }
  if (has_score)
    score_runner_.emplace(*call.decode.score,
                          call.f64 ? *call.table->tile_f64 : *call.table->tile_f32, scratch);
}

template <class T>
void DecodeWalk<T>::load_queries() noexcept {
  const bool pairs = keys_.kind() == DecodeKind::kPairs || keys_.kind() == DecodeKind::kCodePairs;
  if (pairs) query_step_ /= 2;
  const ptrdiff_t element = static_cast<ptrdiff_t>(dtype_size(call_.q_rows.dtype));
  const auto numbers = padded_rows(row_count_) * static_cast<size_t>(query_step_);
  auto* const pair_memory = static_cast<uint32_t*>(query_memory_);
  auto* const memory = static_cast<T*>(query_memory_);
  if (pairs)
    std::fill_n(pair_memory, numbers, 0x80008000u);
  else
    std::fill_n(memory, numbers, call_.integers ? T{0} : T{-0.0});
  for (int i = 0, first = 0; i < row_count_; ++i) {
    const int block = kRowBlock[row_count_ - first];
    const ptrdiff_t at = first * query_step_ + i - first;
    const RowsView row{.data = static_cast<const char*>(call_.q) + rows_[i].q_offset * element,
                       .dtype = call_.q_rows.dtype,
                       .column_step = call_.q_rows.column_step,
                       .rows = 1,
                       .columns = call_.dims};
    if (pairs) {
      auto* numbers_of_row = reinterpret_cast<uint32_t*>(query_row_);
      call_.table->pairs->copy_rows(row, numbers_of_row, query_step_);
      for (int d = 0; d < (call_.dims + 1) / 2; ++d)
        pair_memory[at + d * block] = numbers_of_row[d];
    } else {
      T* const to = block == 1 && !call_.integers ? memory + at : query_row_;
      forward_functions<T>(*call_.table)
          .copy_rows({.from = row, .out = to, .out_step = query_step_, .out_columns = call_.dims});
      rotate(to, call_.dims, call_.k_coding.rotation);
      if (call_.rope.half > 0)
        forward_functions<T>(*call_.table)
            .rotate({.tables = &call_.rope, .rows = to, .count = 1, .position = rows_[i].q_idx});
      if (call_.integers)
        code_query(i);
      else
        for (int d = 0; block > 1 && d < call_.dims; ++d) memory[at + d * block] = to[d];
    }
    if (i + 1 == first + block) first = i + 1;
  }
}

// The query of row `i`, in query_row_, as integers.
template <class T>
void DecodeWalk<T>::code_query(int i) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    std::fill(query_row_ + call_.dims, query_row_ + query_step_, T{0});
    query_scales_[i] = functions_->code_numbers(
        query_row_, static_cast<int>(query_step_), integer_query_shift(call_.k_coding, call_.dims),
        static_cast<int16_t*>(query_memory_) + i * query_step_);
  }
}

template <class T>
typename DecodeWalk<T>::Tile DecodeWalk<T>::tile_at(int64_t index) const noexcept {
  const int64_t left = sequence_.length - index * kTileKeys;
  const int keys = static_cast<int>(std::clamp<int64_t>(left, 0, kTileKeys));
  return {index, keys, (keys + kUnitKeys - 1) / kUnitKeys};
}

// The end of the tiles that have spans for all their keys; an item that was cut has spans only for
// its own splits.
template <class T>
int64_t DecodeWalk<T>::end_tile() const noexcept {
  const int64_t end = sequence_.spans[sequence_.span_count - 1].end;
  return (end == sequence_.length ? end + kTileKeys - 1 : end) / kTileKeys;
}

template <class T>
bool DecodeWalk<T>::run_split(int64_t split, const DecodeState<T>& state) noexcept {
  clear_state(state, row_count_);
  return run_tiles(split * kSplitTiles, (split + 1) * kSplitTiles, state);
}

template <class T>
bool DecodeWalk<T>::run_tiles(int64_t begin, int64_t end, const DecodeState<T>& state) noexcept {
  end = std::min<int64_t>(end, (sequence_.length + kTileKeys - 1) / kTileKeys);
  bool any = false;
  int64_t kept = begin;  // tiles before this one have their scores kept
  for (int64_t index = visible_.next_tile(begin); index < end; index = next_) {
    next_ = visible_.next_tile(index + 1);
    const Tile tile = tile_at(index);
    if (!visible_.look(index, tile.keys)) continue;
    any = true;
    if (keeps_) keep_hidden(kept, index);
    kept = index + 1;
    run_tile(tile, state);
  }
  if (keeps_) keep_hidden(kept, end);
  return any;
}

// Lists the units that are read, in order, and what is prefetched after them.
template <class T>
void DecodeWalk<T>::plan_prefetch(const Tile& tile) noexcept {
  live_count_ = 0;
  for (int unit = 0; unit < tile.units; ++unit)
    if (visible_.unit(unit) != 0) live_[live_count_++] = unit;
  first_key_ = tile.index * kTileKeys;
  unit_begin_ = live_[0];
  unit_end_ = live_[live_count_ - 1] + 1;
  if (compacts_) {
    prefetch_chosen();
    is_compact_ = plan_compact(tile);
    if (is_compact_) return;
  }
  keys_.place(tile.index * kTileKeys, tile.keys, placed_keys_);
  values_.place(tile.index * kTileKeys, tile.keys, placed_values_);
  UnitAhead* to = ahead_;
  for (int i = 0; i < live_count_; ++i) *to++ = keys_.ahead(placed_keys_, live_[i]);
  // Latent values have been loaded as keys: while they are read, the next tile is prefetched.
  if (!call_.v_in_k)
    for (int i = 0; i < live_count_; ++i) *to++ = values_.ahead(placed_values_, live_[i]);
  if (next_ < end_tile() && !compacts_) {
    const Tile next = tile_at(next_);
    const int most = call_.v_in_k ? kTileUnits : kUnitsAhead + keys_.further_ahead() + 1;
    const int units = std::min(next.units, most);
    keys_.place(next.index * kTileKeys, std::min(next.keys, units * kUnitKeys), placed_next_);
    for (int unit = 0; unit < units; ++unit) *to++ = keys_.ahead(placed_next_, unit);
  }
  const UnitAhead* const last = ahead_ + 2 * live_count_ + kTileUnits + 1;
  do *to++ = {};
  while (to < last);
}

// Compacts the keys that any row sees if they then fill at most half as many units.
template <class T>
bool DecodeWalk<T>::plan_compact(const Tile& tile) noexcept {
  const int chain_units = chain_keys(call_.pairs) / kUnitKeys;
  int units = 0, chain = -1;
  scored_count_ = 0;
  for (int i = 0; i < live_count_; ++i) {
    for (uint32_t bits = visible_.unit(live_[i]); bits != 0; bits &= bits - 1) {
      if (chain != live_[i] / chain_units || compact_count_[units - 1] == kUnitKeys) {
        chain = compact_chain_[units] = live_[i] / chain_units;
        compact_count_[units++] = 0;
      }
      int& count = compact_count_[units - 1];
      const auto key = static_cast<int16_t>(live_[i] * kUnitKeys + std::countr_zero(bits));
      scored_key_[scored_count_++] = key;
      compact_key_[(units - 1) * kUnitKeys + count++] = key;
    }
  }
  if (2 * units > live_count_) return false;
  const int64_t key = tile.index * kTileKeys;
  keys_.place_list(key, scored_key_, scored_count_, 0, placed_keys_);
  for (int unit = 0; unit < units; ++unit) {
    values_.place_list(key, compact_key_ + unit * kUnitKeys, compact_count_[unit], unit,
                       placed_values_);
    live_[unit] = unit;
  }
  live_count_ = units;
  std::fill_n(ahead_, 2 * units + kUnitsAhead + 1, UnitAhead{});  // was prefetched one tile ago
  return true;
}

// Prefetches the next tile's keys and values, for all rows. A few of them go straight into L1,
// where nothing else would bring them; 16 keys and values of 128 f32 are 16 KiB.
template <class T>
void DecodeWalk<T>::prefetch_chosen() noexcept {
  if (next_ >= end_tile()) return;
  const int32_t* of = nullptr;
  for (int row = 0; row < row_count_; ++row) {
    const KeyList& list = rows_[row].chosen;
    if (list.keys == of) continue;
    of = list.keys;
    const int64_t key = next_ * kTileKeys;
    const int32_t* const end = list.keys + list.count;
    const int32_t* const first = first_from(list, key, visible_.near());
    const int32_t* last = first;
    while (last != end && *last < key + kTileKeys) ++last;
    const bool into_l1 = last - first <= kUnitKeys;
    for (const int32_t* at = first; at != last; ++at) {
      keys_.prefetch(*at, into_l1);
      if (!call_.v_in_k) values_.prefetch(*at, into_l1);
    }
  }
}

// Moves compacted scores to their places in the tile.
template <class T>
void DecodeWalk<T>::spread_scores() noexcept {
  for (int row = 0; row < row_count_; ++row) {
    const T* const from = compact_ + row * kDecodeScoreStep;
    T* const to = scores_ + row * kDecodeScoreStep;
    for (int i = 0; i < scored_count_; ++i) to[scored_key_[i]] = from[i];
  }
}

// Compacts the weights again: a row that does not see a key has weight 0.
template <class T>
void DecodeWalk<T>::collect_weights() noexcept {
  for (int row = 0; row < row_count_; ++row) {
    const T* const from = scores_ + row * kDecodeScoreStep;
    T* const to = compact_ + row * kDecodeScoreStep;
    for (int unit = 0; unit < live_count_; ++unit) {
      const int begin = unit * kUnitKeys, end = begin + compact_count_[unit];
      std::fill(to + end, to + begin + kUnitKeys, T{0});
      for (int i = begin; i < end; ++i) {
        const int key = compact_key_[i];
        const bool sees = visible_.all() || (visible_.words(row)[key / 64] >> (key % 64) & 1) != 0;
        to[i] = sees ? from[key] : T{0};
      }
    }
  }
}

// The weights of a tile as integers, with their values' scales.
template <class T>
void DecodeWalk<T>::code_weights() noexcept {
  if constexpr (std::is_same_v<T, float>) {
    for (int row = 0; row < row_count_; ++row) {
      const ptrdiff_t at = row * kDecodeScoreStep;
      weight_scales_[row] =
          functions_->code_weights({.weights = (is_compact_ ? compact_ : scores_) + at,
                                    .unit_begin = is_compact_ ? 0 : unit_begin_,
                                    .unit_end = is_compact_ ? live_count_ : unit_end_,
                                    .value_scales = values_.unit_scales(),
                                    .shift = integer_weight_shift(call_.v_coding),
                                    .to = reinterpret_cast<int16_t*>(pair_weights_) + at});
    }
  }
}

template <class T>
void DecodeWalk<T>::run_tile(const Tile& tile, const DecodeState<T>& state) noexcept {
  plan_prefetch(tile);
  if (!is_compact_) {
    keys_.load_scales(first_key_, tile.keys);
    if (!call_.integers) value_scales_ = values_.load_scales(first_key_, tile.keys);
  }
  compute_scores();
  if (is_compact_) spread_scores();
  if (score_runner_) apply_score_mod(tile);
  if (keeps_) keep_scores(tile);
  if (zero_weights_ == ZeroWeights::kSkip) look_for_nan(tile);
  apply_softmax(tile, state);
  if (is_compact_) collect_weights();
  if (call_.integers) {
    // Only now: keys were the first to be prefetched.
    if (!is_compact_) values_.load_scales(first_key_, tile.keys);
    code_weights();
  }
  add_values(state);
}

// Processes live units in calls as long as possible: within a call all are found in place or all
// gathered, and memory for gathered units is limited.
template <class T>
template <class Args, class Wanted>
void DecodeWalk<T>::run_units(bool values, Wanted wanted_of, Args& args,
                              void (*function)(const Args&) noexcept) noexcept {
  UnitRows<T>& rows = values ? values_ : keys_;
  const PlacedUnits& placed = values ? placed_values_ : placed_keys_;
  const UnitAhead* const ahead = values ? ahead_ + live_count_ : ahead_;
  const int further = rows.further_ahead();
  DecodeUnit units[kTileUnits];
  uint32_t wanted[kTileUnits];
  int used[kTileUnits], used_count = 0;  // indices into live_
  for (int i = 0; i < live_count_; ++i) {
    wanted[i] = wanted_of(live_[i]);
    if (wanted[i] != 0) used[used_count++] = i;
  }
  const int shift = std::countr_zero(static_cast<unsigned>(chain_keys(call_.pairs) / kUnitKeys));
  const auto chain_of = [&](int i) {
    const int unit = live_[used[i]];
    return is_compact_ ? compact_chain_[unit] : unit >> shift;
  };
  args.units = units;
  args.unit_count = 0;
  bool gathered = false;
  const auto flush = [&](int done) {
    args.step = rows.step(gathered);
    args.kind = rows.kind(gathered);
    if (args.unit_count > 0) function(args);
    args.ahead = ahead + done + further;
    args.unit_count = 0;
  };
  args.ahead = ahead + further;
  for (int i = 0; i < used_count; ++i) {
    const int live = used[i];
    DecodeUnit found;
    found.place = live_[live];
    found.begins_chain = i == 0 || chain_of(i - 1) != chain_of(i);
    found.ends_chain = i + 1 == used_count || chain_of(i + 1) != chain_of(i);
    const bool lies = rows.find(placed, wanted[live], found);
    if (lies == gathered || (gathered && args.unit_count == rows.slots())) flush(live);
    gathered = !lies;
    if (gathered) {
      const UnitAhead& far = ahead[live + kUnitsAhead + further];
      rows.gather(placed, wanted[live], args.unit_count, first_key_, far, found);
    }
    units[args.unit_count++] = found;
  }
  flush(live_count_);
}

template <class T>
void DecodeWalk<T>::compute_scores() noexcept {
  UnitScoresArgs<T> args;
  args.kind = keys_.kind();
  args.codes = call_.k_coding.codes;
  args.rows = row_count_;
  args.dims = keys_.columns();
  args.queries = query_memory_;
  args.query_step = query_step_;
  args.row_scales = query_scales_;
  args.natural = call_.natural;
  args.scale = scale_;
  args.scores = is_compact_ ? compact_ : scores_;
  const int units = live_count_;
  if (is_compact_) live_count_ = (scored_count_ + kUnitKeys - 1) / kUnitKeys;
  run_units(
      false, [this](int unit) { return is_compact_ ? kAllKeys : visible_.unit(unit); }, args,
      functions_->scores);
  live_count_ = units;
}

template <class T>
void DecodeWalk<T>::apply_score_mod(const Tile& tile) noexcept {
  TileCoords coords;
  coords.start[static_cast<int>(Coord::kB)] = rows_[0].b;
  coords.list[static_cast<int>(Coord::kB)] = batches_;
  coords.list[static_cast<int>(Coord::kH)] = heads_;
  coords.list[static_cast<int>(Coord::kQ)] = queries_;
  coords.start[static_cast<int>(Coord::kKv)] = tile.index * kTileKeys;
  coords.rows = row_count_;
  coords.lanes = tile.keys;
  const auto bytes = static_cast<ptrdiff_t>(sizeof(T));
  score_runner_->begin(coords);
  score_runner_->apply({.data = scores_,
                        .row_step = kDecodeScoreStep * bytes,
                        .group_step = kGroupLanes * bytes,
                        .panel_step = kPanelLanes * bytes},
                       0, row_count_, score_max_, visible_.all() ? nullptr : visible_.words(0));
}

// Keeps the scores of rows whose weights of keys are wanted; hidden keys get -inf.
template <class T>
void DecodeWalk<T>::keep_scores(const Tile& tile) noexcept {
  for (int row = 0; row < row_count_; ++row) {
    if (rows_[row].kept_scores == nullptr) continue;
    const T* const from = scores_ + row * kDecodeScoreStep;
    T* const to = static_cast<T*>(rows_[row].kept_scores) + tile.index * kTileKeys;
    for (int word = 0; word * 64 < tile.keys; ++word) {
      const int begin = word * 64, count = std::min(64, tile.keys - begin);
      const uint64_t bits = visible_.all() ? ~uint64_t{0} : visible_.words(row)[word];
      if (bits == ~uint64_t{0}) {
        std::copy_n(from + begin, count, to + begin);
        continue;
      }
      for (int key = 0; key < count; ++key)
        to[begin + key] = (bits >> key & 1) != 0 ? from[begin + key] : kMinusInf<T>;
    }
  }
}

// The same for tiles that were skipped.
template <class T>
void DecodeWalk<T>::keep_hidden(int64_t begin, int64_t end) noexcept {
  const int64_t first = begin * kTileKeys, last = std::min(end * kTileKeys, sequence_.length);
  if (first >= last) return;
  for (int row = 0; row < row_count_; ++row)
    if (rows_[row].kept_scores != nullptr)
      std::fill_n(static_cast<T*>(rows_[row].kept_scores) + first, last - first, kMinusInf<T>);
}

template <class T>
void DecodeWalk<T>::look_for_nan(const Tile& tile) noexcept {
  for (int row = 0; row < row_count_; ++row)
    for (int key = 0; key < tile.keys; ++key)
      if (visible_.all() || (visible_.words(row)[key / 64] >> (key % 64) & 1))
        saw_nan_ |= std::isnan(scores_[row * kDecodeScoreStep + key]);
}

template <class T>
void DecodeWalk<T>::apply_softmax(const Tile& tile, const DecodeState<T>& state) noexcept {
  RowSoftmaxArgs<T> args;
  args.unit_begin = unit_begin_;
  args.unit_end = unit_end_;
  args.skips_hidden = is_compact_ && !drops_;
  args.keys = tile.keys;
  args.exponent_factor = exponent_factor<T>(call_.natural, call_.scale);
  const size_t weights = (args.unit_end - args.unit_begin) * kUnitKeys;
  const bool wants_pairs = pair_weights_ != nullptr && !call_.integers;
  for (int row = 0; row < row_count_; ++row) {
    args.scores = scores_ + row * kDecodeScoreStep;
    if (wants_pairs) args.pair_weights = pair_weights_ + row * kDecodeScoreStep;
    args.value_scales = value_scales_;
    if (!visible_.sees(row)) {
      std::fill_n(args.scores + args.unit_begin * kUnitKeys, weights, T{0});
      if (wants_pairs) std::fill_n(args.pair_weights + args.unit_begin * kUnitKeys, weights, 0);
      continue;
    }
    args.words = visible_.all() ? nullptr : visible_.words(row);
    args.m = state.m + row;
    args.l = state.l + row;
    const T factor = call_.weights == WeightRule::kSoftmax ? functions_->softmax(args)
                                                           : functions_->take_weights(args);
    if (drops_) drop(tile, args, row);
    if (factor != 1) functions_->rescale(state.o + row * state.columns, state.columns, factor);
  }
}

// Applies dropout to the weights that the softmax has just made.
template <class T>
void DecodeWalk<T>::drop(const Tile& tile, const RowSoftmaxArgs<T>& made, int row) noexcept {
  const QueryRow& at = rows_[row];
  functions_->drop({.weights = made.scores,
                    .unit_begin = made.unit_begin,
                    .unit_end = made.unit_end,
                    .rule = &dropout_,
                    .place = dropout_place(at.b, at.h, at.q_idx, tile.index * kTileKeys),
                    .pair_weights = made.pair_weights,
                    .value_scales = made.value_scales});
}

// Rows of values to read: those with a weight, or those that some row sees.
template <class T>
uint32_t DecodeWalk<T>::wanted_values(int unit) const noexcept {
  if (is_compact_) return (1u << compact_count_[unit]) - 1;
  if (zero_weights_ == ZeroWeights::kMultiply) return visible_.unit(unit);
  uint32_t wanted = 0;
  for (int row = 0; row < row_count_; ++row)
    for (int i = 0; i < kUnitKeys; ++i)
      if (scores_[row * kDecodeScoreStep + unit * kUnitKeys + i] != 0) wanted |= 1u << i;
  return wanted;
}

template <class T>
void DecodeWalk<T>::add_values(const DecodeState<T>& state) noexcept {
  UnitValuesArgs<T> args;
  args.kind = values_.kind();
  args.codes = call_.v_coding.codes;
  args.rows = row_count_;
  args.columns = values_.columns();
  args.weights = is_compact_ ? compact_ : scores_;
  args.pair_weights = pair_weights_;
  args.row_scales = weight_scales_;
  args.out = state.o;
  args.chain = chain_;
  args.out_step = state.columns;
  run_units(
      true, [this](int unit) { return wanted_values(unit); }, args, functions_->values);
}

template <class T>
void DecodeWalk<T>::report(TileFault& fault) const noexcept {
  if (score_runner_ && score_runner_->fault().before(fault)) fault = score_runner_->fault();
  if (visible_.fault() != nullptr && visible_.fault()->before(fault)) fault = *visible_.fault();
}

template DecodeState<float> take_state(int, int, ScratchLayout&);
template DecodeState<double> take_state(int, int, ScratchLayout&);
template void clear_state(const DecodeState<float>&, int) noexcept;
template void clear_state(const DecodeState<double>&, int) noexcept;
template class DecodeWalk<float>;
template class DecodeWalk<double>;

}  // namespace quire::kernels
