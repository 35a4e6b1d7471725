// Prefill: one item of the prefill kernel in progress. prefill.cc has the loop over key tiles,
// visibility and the states of splits; scores.cc the scores of a tile with masks and mods;
// outputs.cc weights x values; prefetch.cc what is prefetched meanwhile. Kernels layer.
#pragma once
#include <cstdint>
#include <optional>

#include "kernels/minus_infinity.h"
#include "kernels/prefill/memory.h"
#include "kernels/tile/tile_runner.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

template <class T>
class Prefill {
 public:
  Prefill(const ForwardCall& call, const PrefillItem& item, PrefillMemory<T>& memory)
      : call_(call),
        item_(item),
        memory_(memory),
        functions_(forward_functions<T>(*call.table)),
        scale_(static_cast<T>(call.scale)),
        exponent_factor_(exponent_factor<T>(call.natural, call.scale)),
        drops_(call.dropout.p > 0),
        columns_(static_cast<int>(whole_panels(call.value_dims))) {
    const TileFunctions& functions = call.f64 ? *call.table->tile_f64 : *call.table->tile_f32;
    if (drops_) dropout_ = dropout_rule(call.dropout);
    if (call.prefill.score != nullptr)
      score_runner_.emplace(*call.prefill.score, functions, memory.score_scratch);
  }

  void run(TileFault& fault) noexcept;
  /// Instead of run: the weights its queries gave to some keys (prefill/key_weights.cc).
  void add_weights(const KeyWeightsItem& of, TileFault& fault) noexcept;

 private:
  /// A query tile that has weights and waits for its outputs (tile registers).
  struct Weighed {
    int tile = -1;
    uint32_t groups[kQueryPanels] = {};  // of keys of which a panel sees something
    uint32_t fresh = 0;                  // panels that have no O yet
  };

  static int panels_of(const QueryTile& tile) { return (tile.queries + kPanel - 1) / kPanel; }
  PrefillState<T>& current(int i) { return seen_[i] ? memory_.split[i] : memory_.total[i]; }
  uint64_t* words(int i) { return memory_.words + ptrdiff_t{i} * kTileKeys; }

  void reset(PrefillState<T>& state, int i) noexcept;
  void run_tile(int64_t key, int rows) noexcept;
  void run_ahead(int64_t key, int rows, const KeyTile& keys) noexcept;
  void list_scores(int i, const KeyTile& keys) noexcept;
  void list_outputs(const Weighed& last, const KeyTile& keys) noexcept;
  Weighed weigh(int i, int64_t key, int rows) noexcept;
  void weigh_panel(int i, int panel, int64_t key, int rows, uint32_t groups) noexcept;
  void add_outputs(const Weighed& last) noexcept;
  const bool* wanted_rows(int64_t key, int rows) noexcept;
  void load_queries(int i) noexcept;
  void compute_scores(int i, int64_t key, int rows, const KeyTile& keys) noexcept;
  void raw_scores(int i, const GroupActivity& block, const KeyTile& keys, T* max) noexcept;
  void scores_by_parts(int i, const GroupActivity& block, const KeyTile& keys, T* max) noexcept;
  void begin_mods(int i, int64_t key, int rows) noexcept;
  void masked_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept;
  void modified_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept;
  void mask_scores(int i, const GroupActivity& block) noexcept;
  void hide_rows(const GroupActivity& group, int row_begin, int row_end) noexcept;
  void apply_softmax(int i, int64_t key, int rows, const KeyTile& keys) noexcept;
  bool makes_pairs(const KeyTile& keys) const noexcept;
  SoftmaxArgs<T> softmax_args(int i, int panel, int rows, uint32_t groups) noexcept;
  void weigh_in_place(int i, int panel, int64_t key, const SoftmaxArgs<T>& args) noexcept;
  void add_weights(int i, int64_t key, int rows, const KeyWeightsItem& of) noexcept;
  uint32_t groups_of(int i, int panel) const noexcept;
  void accumulate(int i, int panel, int rows, const KeyTile& keys) noexcept;
  template <class E>
  void outputs_by_parts(AccumulateArgs<T, E> args,
                        void (*function)(const AccumulateArgs<T, E>&) noexcept) noexcept;
  void load_states(int i) noexcept;
  uint64_t store_states(int i) noexcept;
  void end_split(int i) noexcept;
  void fold(int i, const PrefillState<T>& ended) noexcept;
  void turn_outputs(int i) noexcept;
  void finish(int i, TileFault& fault) noexcept;
  void share_out(int rows) noexcept;
  int64_t panels_of_scores() const noexcept;
  bool asks_between(int64_t work) const noexcept;
  void ask_while_copying(int i) noexcept;
  void ask_ahead(int64_t work) noexcept;
  bool keys_lie_together() const noexcept;
  void plan_next_keys(int64_t key) noexcept;
  void ask_next_keys(int64_t work) noexcept;
  int rows_between_asks(int panels) const noexcept;
  void compute_again(int i, uint64_t slow, TileFault& fault) noexcept;

  const ForwardCall& call_;
  const PrefillItem& item_;
  PrefillMemory<T>& memory_;
  const ForwardFunctions<T>& functions_;
  std::optional<TileRunner> score_runner_;
  T scale_, exponent_factor_;
  bool drops_;
  DropoutRule dropout_;  // if drops_
  int columns_;
  bool loaded_[kMaxQueryTiles] = {};    // queries are transposed
  bool seen_[kMaxQueryTiles] = {};      // `total` holds a split
  uint32_t live_[kMaxQueryTiles] = {};  // panels that saw a key in this split
  uint64_t slow_[kMaxQueryTiles] = {};  // rows for the row kernel
  double lines_per_work_ = 0;           // lines of item_.ahead per panel of a key's scores
  double lines_due_ = 0;                // lines not prefetched yet
  MemoryAhead next_keys_;               // if item_.keys_from_memory
  double next_lines_per_work_ = 0, next_lines_due_ = 0;  // the same of next_keys_
  bool computed_ = false;  // scores exist already, without scale and maximum
};

}  // namespace quire::kernels
