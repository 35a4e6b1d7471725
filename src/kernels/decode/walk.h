// The walk of a few query rows of one key head over the tiles of a split: visibility, scores, mods,
// softmax, values. The caller decides what happens to the state of a split: the decode kernel folds
// or stores it; the row kernel walks once more for a row that came out wrong. Kernels layer.
#pragma once
#include <cstdint>
#include <optional>

#include "kernels/decode/chosen_ahead.h"
#include "kernels/decode/few_keys.h"
#include "kernels/decode/functions.h"
#include "kernels/decode/key_units.h"
#include "kernels/decode/row_visibility.h"
#include "kernels/forward_problem.h"
#include "kernels/scratch_layout.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// Softmax states of some rows: maximum, sum, and O with `columns` per row. An untouched row has m
/// = -inf and l = 0.
template <class T>
struct DecodeState {
  T *m, *l;  // [rows]
  T* o;      // [rows][columns]
  int columns;
};

/// Columns of O in scratch and in stored states.
int decode_columns(int value_dims);

template <class T>
DecodeState<T> take_state(int row_count, int value_dims, ScratchLayout& layout);
template <class T>
void clear_state(const DecodeState<T>& state, int row_count) noexcept;

/// How values with weight 0 are treated.
enum class ZeroWeights {
  kMultiply,  // fast; inf and NaN come through
  kSkip,      // never read
};

/// What a walk keeps of some rows while it is with others.
template <class T>
struct WalkRows {
  const QueryRow* rows = nullptr;
  void* queries = nullptr;          // in DecodeWalk::query_elements() elements, once loaded
  T* query_scales = nullptr;        // [padded rows], of integers
  ListPlaces behind = {};           // RowVisibility::behind()
  ChosenAhead<T>* ahead = nullptr;  // null: their keys are not prefetched
};

template <class T>
class DecodeWalk {
 public:
  /// Without rows it only counts scratch.
  DecodeWalk(const ForwardCall& call, const KeySequence& keys, const QueryRow* rows, int row_count,
             ZeroWeights zero_weights, ScratchLayout& layout);

  /// Goes on with other rows over the same keys, as many as before: those of another query. `load`
  /// comes first, once, and writes their queries to the memory that `to` names.
  void load(const WalkRows<T>& to) noexcept;
  void turn_to(const WalkRows<T>& to) noexcept;
  const ListPlaces& behind() const { return visible_.behind(); }
  /// Elements of compute type of the queries of some rows.
  static size_t query_elements(const ForwardCall& call, int row_count);
  /// A prefetcher of the keys that rows chose.
  ChosenAhead<T> ahead_of(const QueryRow* rows) noexcept;

  /// Computes the state of the split's keys from nothing. Returns whether anything was visible; if
  /// not, `state` is cleared.
  bool run_split(int64_t split, const DecodeState<T>& state) noexcept;

  /// Continues a state with tiles [begin, end), or up to the sequence's end. Returns whether
  /// anything was visible.
  bool run_tiles(int64_t begin, int64_t end, const DecodeState<T>& state) noexcept;

  /// With ZeroWeights::kSkip: whether a visible score was NaN so far.
  bool saw_nan() const { return saw_nan_; }

  /// Replaces `fault` if a visible element has an earlier one.
  void report(TileFault& fault) const noexcept;

 private:
  struct Tile {
    int64_t index;
    int keys, units;
  };

  void list_rows() noexcept;
  void load_queries() noexcept;
  Tile tile_at(int64_t index) const noexcept;
  int64_t end_tile() const noexcept;
  void plan_prefetch(const Tile& tile) noexcept;
  void code_query(int i) noexcept;
  void code_weights(const T* weights, int unit_begin, int unit_end) noexcept;
  void run_tile(const Tile& tile, const DecodeState<T>& state) noexcept;
  bool set_aside(int64_t tile, const DecodeState<T>& state) noexcept;
  void run_few(const DecodeState<T>& state) noexcept;
  void change_few() noexcept;
  bool weigh_few(const FewPart& part, const DecodeState<T>& state) noexcept;
  void drop_few(const FewPart& part) noexcept;
  void add_few(std::span<const FewPart> parts, const DecodeState<T>& state) noexcept;
  template <class Wanted>
  UnitRun<T> wanted_units(bool values, Wanted wanted) noexcept;
  UnitScoresArgs<T> score_args() const noexcept;
  UnitValuesArgs<T> value_args(const DecodeState<T>& state) const noexcept;
  void apply_score_mod(const Tile& tile) noexcept;
  void look_for_nan(const Tile& tile) noexcept;
  void apply_softmax(const Tile& tile, const DecodeState<T>& state) noexcept;
  void drop(const Tile& tile, const RowSoftmaxArgs<T>& made, int row) noexcept;
  void rescale(const DecodeState<T>& state, int row, T factor) noexcept;
  void keep_scores(const Tile& tile) noexcept;
  void keep_hidden(int64_t begin, int64_t end) noexcept;
  uint32_t wanted_values(int unit) const noexcept;

  const ForwardCall& call_;
  const KeySequence& sequence_;
  const QueryRow* rows_;
  int row_count_;
  bool is_many_;  // rows of values
  ZeroWeights zero_weights_;
  const DecodeFunctions<T>* functions_;
  UnitRows<T> keys_, values_;
  bool are_lanes_;  // rows, in scores
  RowVisibility visible_;
  T scale_;
  bool drops_;
  DropoutRule dropout_;  // if drops_
  void* query_memory_;   // as UnitScoresArgs wants them: T, or 32-bit pairs
  T* query_row_;         // [query_step_]
  ptrdiff_t query_step_;
  T *scores_, *score_max_;            // [rows][kDecodeScoreStep], [rows][64]
  T* chain_;                          // as the O of a state
  uint16_t* pair_weights_;            // as scores_; of pairs
  T *query_scales_, *weight_scales_;  // [rows], of integers: what takes them back
  int64_t *batches_, *heads_, *queries_;
  std::optional<TileRunner> score_runner_;
  bool saw_nan_ = false;
  bool keeps_ = false;  // some row's scores are kept
  // The units of this tile that any row sees: their keys, then their values, then kUnitsAhead
  // entries of what comes next, empty where there is nothing. Written for each tile.
  UnitAhead ahead_[4 * kTileUnits];
  PlacedUnits placed_keys_, placed_values_, placed_next_;
  int live_[kTileUnits];
  int live_count_ = 0;
  int64_t next_ = -1;                  // tile
  int unit_begin_ = 0, unit_end_ = 0;  // of this tile, where any row sees anything
  WantedUnit wanted_[kTileUnits];
  std::optional<FewKeys<T>> few_;  // if keys can be set aside, and then these two, too
  std::optional<ChosenAhead<T>> own_ahead_;
  ChosenAhead<T>* chosen_ahead_ = nullptr;
  T* factors_ = nullptr;                 // [rows]
  int64_t first_key_ = 0;                // of this tile
  const float* value_scales_ = nullptr;  // of this tile, if values are codes read in place
};

}  // namespace quire::kernels
