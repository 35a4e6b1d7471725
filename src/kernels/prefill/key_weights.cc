// The weights that queries gave to keys: recomputes scores, and turns them into weights by the
// finished states of their rows (kernels/key_weights.h). Reads no values. Kernels layer.
#include <algorithm>

#include "kernels/bit_range.h"
#include "kernels/prefill/item.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

template <class T>
void Prefill<T>::add_weights(const KeyWeightsItem& of, TileFault& fault) noexcept {
  if (of.entropy != nullptr)
    std::fill_n(static_cast<T*>(of.entropy), item_.tile_count * kQueryTile, T{0});
  for (int64_t key = of.key_begin; key < of.key_end; key += kTileKeys) {
    const int rows = static_cast<int>(std::min<int64_t>(kTileKeys, of.key_end - key));
    bool any = false;
    for (int i = 0; i < item_.tile_count; ++i) {
      memory_.activity[i] = memory_.visibility.look(item_.tiles[i], key, rows, words(i));
      any |= memory_.activity[i].any;
    }
    if (!any) continue;
    const KeyTile keys = memory_.loader.load(key, rows, wanted_rows(key, rows), false);
    for (int i = 0; i < item_.tile_count; ++i) {
      if (!memory_.activity[i].any) continue;
      if (!loaded_[i]) load_queries(i);
      compute_scores(i, key, rows, keys);
      add_weights(i, key, rows, of);
    }
  }
  for (const TileFault* found :
       {score_runner_ ? &score_runner_->fault() : nullptr, memory_.visibility.fault()})
    if (found != nullptr && found->before(fault)) fault = *found;
}

// One query tile and one tile of keys, panel by panel.
template <class T>
void Prefill<T>::add_weights(int i, int64_t key, int rows, const KeyWeightsItem& of) noexcept {
  const QueryTile& tile = item_.tiles[i];
  const T* const row_max = static_cast<const T*>(call_.row_max) + tile.stat_offset;
  const T* const row_sum = static_cast<const T*>(call_.row_sum) + tile.stat_offset;
  for (int panel = 0; panel < panels_of(tile); ++panel) {
    const uint32_t groups = groups_of(i, panel);
    if (groups == 0) continue;
    T m[kPanel] = {}, inverse[kPanel] = {}, counted[kPanel] = {};
    for (int lane = 0; lane < kPanel; ++lane) {
      const int query = panel * kPanel + lane;
      if (query >= tile.queries) continue;
      const T sum = row_sum[query * call_.stat_step];
      if (sum != 0) m[lane] = row_max[query * call_.stat_step];
      inverse[lane] = weight_factor(call_.weights, sum);
      if ((of.counted[i] >> query & 1) != 0) counted[lane] = inverse[lane];
    }
    T* const sums = static_cast<T*>(of.sums);
    T* const entropy = static_cast<T*>(of.entropy);
    functions_.panel_weights(
        {.scores = memory_.scores + panel * kScorePanelStep,
         .groups = groups,
         .rows = rows,
         .is_formula = call_.weights != WeightRule::kSoftmax,
         .exponent_factor = exponent_factor_,
         .m = m,
         .inverse = inverse,
         .counted = counted,
         .sums = sums == nullptr ? nullptr : sums + (key - of.key_begin) * kPanel,
         .entropy = entropy == nullptr ? nullptr : entropy + i * kQueryTile + panel * kPanel});
  }
}

namespace {

template <class T>
void run(const ForwardCall& call, const KeyWeightsItem& item, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  PrefillMemory<T> memory(call, item.queries.keys, item.queries.tile_count, layout);
  const PairScope scope(call);
  Prefill<T>(call, item.queries, memory).add_weights(item, fault);
}

}  // namespace

void key_weights(const ForwardCall& call, const KeyWeightsItem& item, void* scratch,
                 TileFault& fault) noexcept {
  call.f64 ? run<double>(call, item, scratch, fault) : run<float>(call, item, scratch, fault);
}

}  // namespace quire::kernels
