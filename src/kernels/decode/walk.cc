// Walks tiles of keys for a few rows. All arithmetic is in the primitives of the ISA (functions.h).
// No SIMD. Kernels layer.
#include "kernels/decode/walk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/coding/rotate.h"
#include "kernels/decode/decode.h"
#include "kernels/minus_infinity.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

int whole_blocks(int columns) {
  return (columns + kDecodeColumns - 1) / kDecodeColumns * kDecodeColumns;
}

// More rows than this are lanes in scores. Keys of 16 bits that are widened are copied first: with
// bf16 on AVX2 9 rows take 1.6 times as long as by blocks of 8, 12 rows 1.4 times; 16 rows 1.1
// times as long as twice 8, which their values make up for.
int most_rows_by_keys(DecodeKind kind) {
  return kind == DecodeKind::kBf16 || kind == DecodeKind::kF16 ? kDecodeRows : kFewDecodeRows;
}

// Null while scratch is only counted.
template <class T>
const DecodeFunctions<T>* functions_of(const ForwardCall& call) {
  return call.table == nullptr ? nullptr : &decode_functions<T>(*call.table);
}

bool has_pairs(DecodeKind kind) {
  return kind == DecodeKind::kPairs || kind == DecodeKind::kCodePairs;
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
      is_many_(row_count > kFewDecodeRows && most_decode_rows(call) > kDecodeRows),
      zero_weights_(zero_weights),
      functions_(functions_of<T>(call)),
      keys_(call, keys, false, layout),
      values_(call, keys, true, layout),
      are_lanes_(is_many_ && row_count > most_rows_by_keys(keys_.kind())),
      visible_(call, rows, row_count, layout),
      scale_(static_cast<T>(call.scale)),
      drops_(call.dropout.p > 0),
      query_step_(whole_blocks(call.dims)) {
  if (drops_) dropout_ = dropout_rule(call.dropout);
  const size_t padded = padded_rows(row_count);
  query_memory_ = layout.take<T>(query_elements(call, row_count));
  query_row_ = layout.take<T>(query_step_);
  if (has_pairs(keys_.kind())) query_step_ /= 2;
  scores_ = layout.take<T>(padded * kDecodeScoreStep);
  if (zero_weights == ZeroWeights::kMultiply && FewKeys<T>::suits(call, keys_, values_)) {
    few_.emplace(call, keys_, values_, row_count, layout);
    factors_ = layout.take<T>(padded);
  }
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
  list_rows();
  load_queries();
  // Padding rows have weight 0.
  std::fill_n(scores_, padded * kDecodeScoreStep, T{0});
  if (pair_weights_ != nullptr) std::fill_n(pair_weights_, padded * kDecodeScoreStep, 0);
  if (call.integers) std::fill_n(weight_scales_, padded, T{0});
  if (few_) {
    own_ahead_.emplace(ahead_of(rows));
    chosen_ahead_ = &*own_ahead_;
  }
  if (has_score)
    score_runner_.emplace(*call.decode.score,
                          call.f64 ? *call.table->tile_f64 : *call.table->tile_f32, scratch);
}

template <class T>
size_t DecodeWalk<T>::query_elements(const ForwardCall& call, int row_count) {
  return padded_queries(row_count) * static_cast<size_t>(whole_blocks(call.dims));
}

template <class T>
ChosenAhead<T> DecodeWalk<T>::ahead_of(const QueryRow* rows) noexcept {
  return {rows, row_count_, keys_, call_.v_in_k ? nullptr : &values_, end_tile() * kTileKeys};
}

template <class T>
void DecodeWalk<T>::list_rows() noexcept {
  keeps_ = false;
  for (int i = 0; i < row_count_; ++i) {
    batches_[i] = rows_[i].b;
    heads_[i] = rows_[i].h;
    queries_[i] = rows_[i].q_idx;
    keeps_ |= rows_[i].kept_scores != nullptr;
  }
}

template <class T>
void DecodeWalk<T>::load(const WalkRows<T>& to) noexcept {
  turn_to(to);
  load_queries();
}

template <class T>
void DecodeWalk<T>::turn_to(const WalkRows<T>& to) noexcept {
  rows_ = to.rows;
  query_memory_ = to.queries;
  query_scales_ = to.query_scales;
  chosen_ahead_ = to.ahead;
  visible_.turn_to(to.rows, to.behind);
  list_rows();
}

template <class T>
void DecodeWalk<T>::load_queries() noexcept {
  const bool pairs = has_pairs(keys_.kind());
  const ptrdiff_t element = static_cast<ptrdiff_t>(dtype_size(call_.q_rows.dtype));
  const size_t lanes = are_lanes_ ? query_lanes(row_count_) : padded_rows(row_count_);
  const auto numbers = lanes * static_cast<size_t>(query_step_);
  auto* const pair_memory = static_cast<uint32_t*>(query_memory_);
  auto* const memory = static_cast<T*>(query_memory_);
  if (pairs)
    std::fill_n(pair_memory, numbers, 0x80008000u);
  else
    std::fill_n(memory, numbers, call_.integers ? T{0} : T{-0.0});
  for (int i = 0, first = 0; i < row_count_; ++i) {
    const int block = are_lanes_ ? static_cast<int>(lanes) : kRowBlock[row_count_ - first];
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
    const Tile tile = tile_at(index);
    const bool sees = visible_.look(index, tile.keys);
    next_ = visible_.next_tile(index + 1);  // which goes on from there
    if (!sees) continue;
    any = true;
    if (keeps_) keep_hidden(kept, index);
    kept = index + 1;
    if (few_ && set_aside(index, state)) continue;
    run_tile(tile, state);
  }
  if (few_) run_few(state);
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
  keys_.place(tile.index * kTileKeys, tile.keys, placed_keys_);
  values_.place(tile.index * kTileKeys, tile.keys, placed_values_);
  UnitAhead* to = ahead_;
  for (int i = 0; i < live_count_; ++i) *to++ = keys_.ahead(placed_keys_, live_[i]);
  // Latent values have been loaded as keys: while they are read, the next tile is prefetched.
  if (!call_.v_in_k)
    for (int i = 0; i < live_count_; ++i) *to++ = values_.ahead(placed_values_, live_[i]);
  if (next_ < end_tile() && !few_) {
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

// The weights of a tile as integers, with their values' scales.
template <class T>
void DecodeWalk<T>::code_weights(const T* weights, int unit_begin, int unit_end) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    for (int row = 0; row < row_count_; ++row) {
      const ptrdiff_t at = row * kDecodeScoreStep;
      weight_scales_[row] =
          functions_->code_weights({.weights = weights + at,
                                    .unit_begin = unit_begin,
                                    .unit_end = unit_end,
                                    .value_scales = values_.unit_scales(),
                                    .shift = integer_weight_shift(call_.v_coding),
                                    .to = reinterpret_cast<int16_t*>(pair_weights_) + at});
    }
  }
}

template <class T>
void DecodeWalk<T>::run_tile(const Tile& tile, const DecodeState<T>& state) noexcept {
  if (few_) {
    run_few(state);
    if (chosen_ahead_ != nullptr)
      chosen_ahead_->run(tile.index * kTileKeys, visible_.near(), kTileKeys);
  }
  visible_.fill();
  plan_prefetch(tile);
  keys_.load_scales(first_key_, tile.keys);
  values_.prefetch_scales(first_key_, tile.keys);
  if (!call_.integers) value_scales_ = values_.load_scales(first_key_, tile.keys);
  UnitScoresArgs<T> scores = score_args();
  run_units(wanted_units(false, [this](int unit) { return visible_.unit(unit); }), scores,
            are_lanes_ ? functions_->many_scores : functions_->scores);
  if (score_runner_) apply_score_mod(tile);
  if (keeps_) keep_scores(tile);
  if (zero_weights_ == ZeroWeights::kSkip) look_for_nan(tile);
  apply_softmax(tile, state);
  if (call_.integers) {
    // Only now: keys were the first to be prefetched.
    values_.load_scales(first_key_, tile.keys);
    code_weights(scores_, unit_begin_, unit_end_);
  }
  if (next_ < end_tile() && !few_) keys_.prefetch_scales(next_ * kTileKeys, tile_at(next_).keys);
  UnitValuesArgs<T> values = value_args(state);
  run_units(wanted_units(true, [this](int unit) { return wanted_values(unit); }), values,
            is_many_ ? functions_->many_values : functions_->values);
}

// Sets a tile aside of which rows see only a few keys. What changes scores or weights by their
// places needs the tile's visibility, which is known only until the next tile: such a tile is run
// at once.
template <class T>
bool DecodeWalk<T>::set_aside(int64_t tile, const DecodeState<T>& state) noexcept {
  if (!few_->are_few(visible_)) return false;
  if (few_->is_full()) run_few(state);
  few_->add(tile, visible_);
  if (!score_runner_ && !keeps_ && !drops_) return true;
  visible_.fill();
  run_few(state);
  return true;
}

// Runs the tiles that were set aside. Keys are prefetched as far ahead as the next ones to be set
// aside are likely to reach, a part for each tile, because a burst would wait for memory.
template <class T>
void DecodeWalk<T>::run_few(const DecodeState<T>& state) noexcept {
  constexpr int kFurther = 32;
  if (few_->is_empty()) return;
  UnitScoresArgs<T> scores = score_args();
  scores.scores = few_->scores();
  scores.prefetches = false;
  run_units(few_->scored(), scores, are_lanes_ ? functions_->many_scores : functions_->scores);
  if (score_runner_ || keeps_) change_few();
  const std::span<const FewPart> parts = few_->parts();
  size_t added = 0;  // parts whose values have been added
  for (size_t i = 0; i < parts.size(); ++i) {
    if (chosen_ahead_ != nullptr)
      chosen_ahead_->run(parts[i].tile * kTileKeys, parts[i].near, few_->key_count() + kFurther);
    if (weigh_few(parts[i], state)) {
      add_few(parts.subspan(added, i - added), state);
      added = i;
      for (int row = 0; row < row_count_; ++row)
        if (factors_[row] != 1) rescale(state, row, factors_[row]);
    }
    if (drops_) drop_few(parts[i]);
    if (!call_.integers) continue;
    const int unit = parts[i].weight / kUnitKeys;
    code_weights(few_->weights(), unit, unit + few_->units(parts[i]));
    add_few(parts.subspan(i, 1), state);
    added = i + 1;
  }
  add_few(parts.subspan(added), state);
  few_->clear();
}

// Applies the score mod to the only tile that was set aside, and keeps its scores.
template <class T>
void DecodeWalk<T>::change_few() noexcept {
  const FewPart& part = few_->parts()[0];
  const Tile tile = tile_at(part.tile);
  for (int row = 0; row < row_count_; ++row)
    few_->spread(part, few_->scores(part, row), scores_ + row * kDecodeScoreStep);
  if (score_runner_) apply_score_mod(tile);
  if (keeps_) keep_scores(tile);
  for (int row = 0; row < row_count_; ++row)
    few_->collect(part, scores_ + row * kDecodeScoreStep, few_->scores(part, row));
}

template <class T>
void DecodeWalk<T>::drop_few(const FewPart& part) noexcept {
  for (int row = 0; row < row_count_; ++row) {
    T* const weights = scores_ + row * kDecodeScoreStep;
    few_->spread(part, few_->weights(part, row), weights);
    drop(tile_at(part.tile), {.scores = weights, .unit_end = kTileUnits}, row);
    few_->collect(part, weights, few_->weights(part, row));
  }
}

// Scores to weights. Returns whether O must be rescaled by factors_.
template <class T>
bool DecodeWalk<T>::weigh_few(const FewPart& part, const DecodeState<T>& state) noexcept {
  return functions_->few_softmax({.scores = few_->scores(part, 0),
                                  .weights = few_->weights(part, 0),
                                  .rows = row_count_,
                                  .keys = part.keys,
                                  .places = few_->places(part),
                                  .seen = part.seen,
                                  .seen_step = part.seen_step,
                                  .takes_weights = call_.weights != WeightRule::kSoftmax,
                                  .exponent_factor = exponent_factor<T>(call_.natural, call_.scale),
                                  .m = state.m,
                                  .l = state.l,
                                  .factors = factors_});
}

template <class T>
void DecodeWalk<T>::add_few(std::span<const FewPart> parts, const DecodeState<T>& state) noexcept {
  UnitValuesArgs<T> values = value_args(state);
  values.weights = few_->weights();
  values.prefetches = false;
  run_units(few_->valued(parts), values, is_many_ ? functions_->many_values : functions_->values);
}

// The units of the tile of which some keys are wanted.
template <class T>
template <class Wanted>
UnitRun<T> DecodeWalk<T>::wanted_units(bool values, Wanted wanted_of) noexcept {
  const int shift = std::countr_zero(static_cast<unsigned>(chain_keys(call_.pairs) / kUnitKeys));
  size_t count = 0;
  for (int i = 0; i < live_count_; ++i) {
    const uint32_t keys = wanted_of(live_[i]);
    if (keys != 0)
      wanted_[count++] = {.place = live_[i], .keys = keys, .chain = live_[i] >> shift, .ahead = i};
  }
  return {.rows = values ? values_ : keys_,
          .placed = values ? placed_values_ : placed_keys_,
          .first_key = first_key_,
          .ahead = values ? ahead_ + live_count_ : ahead_,
          .wanted = {wanted_, count}};
}

template <class T>
UnitScoresArgs<T> DecodeWalk<T>::score_args() const noexcept {
  UnitScoresArgs<T> args;
  args.coding = call_.k_coding;
  args.by = keys_.rules();
  args.rows = row_count_;
  args.dims = keys_.columns();
  args.queries = query_memory_;
  args.query_step = query_step_;
  args.row_scales = query_scales_;
  args.natural = call_.natural;
  args.scale = scale_;
  args.scores = scores_;
  if (fuses_rope(call_)) args.rope = &call_.rope;
  args.position = first_key_;
  return args;
}

template <class T>
UnitValuesArgs<T> DecodeWalk<T>::value_args(const DecodeState<T>& state) const noexcept {
  UnitValuesArgs<T> args;
  args.coding = call_.v_coding;
  args.by = values_.rules();
  args.rows = row_count_;
  args.columns = values_.columns();
  args.weights = scores_;
  args.pair_weights = pair_weights_;
  args.row_scales = weight_scales_;
  args.out = state.o;
  args.chain = chain_;
  args.out_step = state.columns;
  return args;
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
    if (factor != 1) rescale(state, row, factor);
  }
}

template <class T>
void DecodeWalk<T>::rescale(const DecodeState<T>& state, int row, T factor) noexcept {
  functions_->rescale(state.o + row * state.columns, state.columns, factor);
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
  if (zero_weights_ == ZeroWeights::kMultiply) return visible_.unit(unit);
  uint32_t wanted = 0;
  for (int row = 0; row < row_count_; ++row)
    for (int i = 0; i < kUnitKeys; ++i)
      if (scores_[row * kDecodeScoreStep + unit * kUnitKeys + i] != 0) wanted |= 1u << i;
  return wanted;
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
