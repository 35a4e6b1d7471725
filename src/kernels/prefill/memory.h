// PrefillMemory: the layout and size of a thread's scratch while the prefill kernel works on an
// item. Holds no arithmetic. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/decode/row_kernel.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/prefill/pair_scope.h"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/tile_activity.h"
#include "kernels/prefill/tile_visibility.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

// The state of one query tile: of all splits so far, or of the current one.
template <class T>
struct PrefillState {
  T *m, *l, *o;  // [64], [64], [64][columns]
};

template <class T>
struct PrefillMemory {
  KeyTileLoader<T> loader;
  TileVisibility visibility;
  T* scores;          // [4][kScorePanelStep]
  T* queries;         // [tiles][dims][64]; pairs: 32-bit elements, half as many
  size_t query_size;  // of one tile
  PrefillState<T> total[kMaxQueryTiles], split[kMaxQueryTiles];
  T *max, *factor;         // [64]
  uint64_t* words;         // [tiles][256]
  TileActivity* activity;  // [tiles]
  bool* wanted;            // [256]
  T* rotated;              // [64][dims], with rope
  T* plain_queries;        // [dims][64], of integers: before they are coded
  T* query_scales;         // [tiles][64], of integers
  T* weight_scales;        // [16], of integers
  void *score_scratch, *row_scratch;
  // With tile registers: products in progress, and the scores and weights of the query tiles one
  // ahead and one behind.
  TileProducts* products;
  T *next_scores, *last_factor;  // as scores and factor
  uint32_t *pairs, *last_pairs;  // weights: [4][kPairPanelStep]; `pairs` of one panel without
  T* sums;                       // [4][tile_columns][16]

  PrefillMemory(const ForwardCall& call, const KeySequence& keys, int tiles, ScratchLayout& layout)
      : loader(call, keys, layout),
        visibility(call.prefill.mask, call.f64 ? *call.table->tile_f64 : *call.table->tile_f32,
                   layout) {
    const size_t columns = whole_panels(call.value_dims);
    const int elements = call.pairs ? row_pairs(call) : call.dims;
    query_size = static_cast<size_t>(elements) * kQueryTile;
    scores = layout.take<T>(kQueryPanels * kScorePanelStep);
    queries = layout.take<T>(static_cast<size_t>(tiles) * query_size);
    for (int i = 0; i < tiles; ++i) {
      for (PrefillState<T>* state : {&total[i], &split[i]}) {
        state->m = layout.take<T>(kQueryTile);
        state->l = layout.take<T>(kQueryTile);
        state->o = layout.take<T>(kQueryTile * columns);
      }
    }
    max = layout.take<T>(kQueryTile);
    factor = layout.take<T>(kQueryTile);
    words = layout.take<uint64_t>(static_cast<size_t>(tiles) * kTileKeys);
    activity = layout.take<TileActivity>(tiles);
    wanted = layout.take<bool>(kTileKeys);
    rotated = layout.take<T>(call.rope.half > 0 ? static_cast<size_t>(kQueryTile * call.dims) : 0);
    plain_queries = layout.take<T>(call.integers ? static_cast<size_t>(kQueryTile * call.dims) : 0);
    query_scales = layout.take<T>(call.integers ? static_cast<size_t>(tiles * kQueryTile) : 0);
    weight_scales = layout.take<T>(call.integers ? kPanel : 0);
    const bool tiled = tiles_of(call) != nullptr;
    products = layout.take<TileProducts>(tiled ? 1 : 0);
    next_scores = layout.take<T>(tiled ? kQueryPanels * kScorePanelStep : 0);
    last_factor = layout.take<T>(tiled ? kQueryTile : 0);
    const int paired_panels = tiled ? kQueryPanels : call.pairs ? 1 : 0;
    pairs = layout.take<uint32_t>(paired_panels * kPairPanelStep);
    last_pairs = layout.take<uint32_t>(tiled ? kQueryPanels * kPairPanelStep : 0);
    sums = layout.take<T>(tiled ? kQueryTile * tile_columns(call.value_dims) : 0);
    const TileProgram* const score = call.prefill.score;
    score_scratch = layout.take<char>(score == nullptr ? 0 : score->scratch_bytes);
    // The last piece: its size only counts when scratch is sized.
    row_scratch = layout.take<char>(layout.counts_only() ? row_scratch_bytes(call) : 0);
  }
};

}  // namespace quire::kernels
