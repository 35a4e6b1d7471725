// BackwardMemory: the layout and size of a thread's scratch while the backward kernel works on a
// chunk of keys. Holds no arithmetic. Kernels layer.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/backward/problem.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/prefill/pair_scope.h"
#include "kernels/prefill/tile_visibility.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

int backward_chunk_keys(int dims, int value_dims);

/// Rows of whole panels, an odd number of cache lines apart: rows a power of two apart would share
/// their L1 sets.
template <class T>
constexpr ptrdiff_t scratch_row_step(int columns) {
  constexpr ptrdiff_t kLine = 64 / sizeof(T);
  const ptrdiff_t whole = whole_panels(columns);
  return whole / kLine % 2 == 0 ? whole + kLine : whole;
}

template <class T>
struct BackwardMemory {
  TileVisibility visibility;
  ptrdiff_t step, value_step;     // of rows of q and k, of v and d_out
  T *keys, *values;               // [chunk]
  uint32_t* key_pairs = nullptr;  // [chunk][pairs]
  T *d_keys, *d_values;           // [chunk], of the current head; at the end, of all heads
  T *sum_keys = nullptr, *sum_values = nullptr;  // the same of earlier heads, if several
  bool* spoiled_keys;                            // [chunk]: key or value is not finite
  T* d_queries;                                  // [64] rows
  T *queries, *d_outs;                           // [64] rows
  T *query_columns, *d_out_columns;              // [dims][64]; pairs: 32-bit elements, half as many
  T *weights, *gradients;                        // [4][kScorePanelStep]
  T* slopes = nullptr;  // as weights, where the score mod has slopes of its own
  uint64_t* words;      // [256]

  BackwardMemory(const BackwardCall& call, ScratchLayout& layout)
      : visibility(call.forward.prefill.mask,
                   call.forward.f64 ? *call.forward.table->tile_f64 : *call.forward.table->tile_f32,
                   layout) {
    const ForwardCall& f = call.forward;
    const size_t chunk = backward_chunk_keys(f.dims, f.value_dims);
    step = scratch_row_step<T>(f.dims);
    value_step = scratch_row_step<T>(f.value_dims);
    const auto rows = static_cast<size_t>(step), value_rows = static_cast<size_t>(value_step);
    keys = layout.take<T>(chunk * rows);
    values = layout.take<T>(chunk * value_rows);
    const int pairs = f.pairs ? row_pairs(f) : 0;
    if (f.pairs) key_pairs = layout.take<uint32_t>(chunk * static_cast<size_t>(pairs));
    d_keys = layout.take<T>(chunk * rows);
    d_values = layout.take<T>(chunk * value_rows);
    if (call.shares_keys) {
      sum_keys = layout.take<T>(chunk * rows);
      sum_values = layout.take<T>(chunk * value_rows);
    }
    spoiled_keys = layout.take<bool>(chunk);
    d_queries = layout.take<T>(kQueryTile * rows);
    queries = layout.take<T>(kQueryTile * rows);
    d_outs = layout.take<T>(kQueryTile * value_rows);
    query_columns = layout.take<T>(kQueryTile * static_cast<size_t>(std::max(f.dims, pairs)));
    d_out_columns = layout.take<T>(kQueryTile * static_cast<size_t>(f.value_dims));
    weights = layout.take<T>(kQueryPanels * kScorePanelStep);
    gradients = layout.take<T>(kQueryPanels * kScorePanelStep);
    if (call.gradient != nullptr && call.gradient->slope == SlopeKind::kElement)
      slopes = layout.take<T>(kQueryPanels * kScorePanelStep);
    words = layout.take<uint64_t>(kTileKeys);
  }
};

}  // namespace quire::kernels
