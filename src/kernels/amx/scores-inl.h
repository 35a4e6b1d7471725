// Scores on tile registers: 16 keys, read in place, times 16 queries across the lanes, 32 dims per
// step; two groups of keys by two panels of queries at a time, so that each product needs one load.
// Kernels layer.
#pragma once
#include <cstring>

#include "kernels/amx/tiles-inl.h"
#include "kernels/math/minmax-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

using TileScoresArgs = ScoresArgs<float, uint32_t>;

// Sums of kGroups groups of keys by kPanels panels: tiles 0 to 3; keys are 4 and 5, queries 6
// and 7.
template <int kGroups, int kPanels>
HWY_INLINE void score_steps(const uint32_t* keys, ptrdiff_t key_step, const uint32_t* queries,
                            int pairs) {
  const ptrdiff_t key_bytes = key_step * 4, group = kTileRows * key_step;
  clear_tile<0>();
  if constexpr (kPanels == 2) clear_tile<1>();
  if constexpr (kGroups == 2) clear_tile<2>();
  if constexpr (kGroups == 2 && kPanels == 2) clear_tile<3>();
  for (int p = 0; p < pairs; p += kStepPairs, keys += kStepPairs) {
    load_tile<4>(keys, key_bytes);
    load_tile<6>(queries + p * kQueryTile, kQueryTile * 4);
    multiply_tiles<0, 4, 6>();
    if constexpr (kPanels == 2) {
      load_tile<7>(queries + p * kQueryTile + kPanel, kQueryTile * 4);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (kGroups == 2) {
      load_tile<5>(keys + group, key_bytes);
      multiply_tiles<2, 5, 6>();
      if constexpr (kPanels == 2) multiply_tiles<3, 5, 7>();
    }
  }
}

// Stores whole groups to the scores.
template <int kGroups, int kPanels>
HWY_INLINE void store_scores(float* to) {
  store_tile<0>(to, kTileBytes);
  if constexpr (kPanels == 2) store_tile<1>(to + kScorePanelStep, kTileBytes);
  if constexpr (kGroups == 2) store_tile<2>(to + kTileRows * kPanel, kTileBytes);
  if constexpr (kGroups == 2 && kPanels == 2)
    store_tile<3>(to + kScorePanelStep + kTileRows * kPanel, kTileBytes);
}

// Finishes one panel: multiplies by the scale, if there is one, and finds the maxima.
HWY_INLINE void finish_scores(const TileScoresArgs& args, float* scores, int rows, float* max) {
  if (args.scaled) {
    const V scale = hn::Set(kF32, args.scale);
    for (int r = 0; r < rows; ++r)
      hn::StoreU(hn::Mul(hn::LoadU(kF32, scores + r * kPanel), scale), kF32, scores + r * kPanel);
  }
  if (max == nullptr) return;
  V m = hn::LoadU(kF32, max), other = m;
  int r = 0;
  for (; r + 2 <= rows; r += 2) {
    m = max_step(hn::LoadU(kF32, scores + r * kPanel), m);
    other = max_step(hn::LoadU(kF32, scores + (r + 1) * kPanel), other);
  }
  if (r < rows) m = max_step(hn::LoadU(kF32, scores + r * kPanel), m);
  hn::StoreU(max_step(other, m), kF32, max);
}

template <int kGroups, int kPanels>
HWY_INLINE void score_block(const TileScoresArgs& args, int row, int panel) {
  float* const to = args.scores + panel * kScorePanelStep + row * kPanel;
  score_steps<kGroups, kPanels>(args.keys + row * args.key_step, args.key_step,
                                args.queries + panel * kPanel, args.dims);
  store_scores<kGroups, kPanels>(to);
  for (int p = 0; p < kPanels; ++p)
    finish_scores(args, to + p * kScorePanelStep, kGroups * kTileRows,
                  args.max == nullptr ? nullptr : args.max + (panel + p) * kPanel);
}

template <int kGroups>
HWY_INLINE void score_groups(const TileScoresArgs& args, int row) {
  int panel = 0;
  for (; panel + 2 <= args.panels; panel += 2) score_block<kGroups, 2>(args, row, panel);
  if (panel < args.panels) score_block<kGroups, 1>(args, row, panel);
}

// Fewer than 16 keys: both input and output are copied, because a tile always has all 16 rows. What
// the unused rows hold does not matter.
HWY_NOINLINE void score_rest(const TileScoresArgs& args, int row) {
  const int rows = args.rows - row;
  HWY_ALIGN uint32_t keys[kTileRows * kMostHeadDim / 2];
  HWY_ALIGN float scores[kTileRows * kPanel];
  for (int r = 0; r < rows; ++r)
    std::memcpy(keys + r * args.dims, args.keys + (row + r) * args.key_step,
                static_cast<size_t>(args.dims) * 4);
  for (int panel = 0; panel < args.panels; ++panel) {
    score_steps<1, 1>(keys, args.dims, args.queries + panel * kPanel, args.dims);
    store_tile<0>(scores, kTileBytes);
    finish_scores(args, scores, rows, args.max == nullptr ? nullptr : args.max + panel * kPanel);
    std::memcpy(args.scores + panel * kScorePanelStep + row * kPanel, scores,
                static_cast<size_t>(rows) * kTileBytes);
  }
}

inline void tile_finish_scores(const TileScoresArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel)
    finish_scores(args, args.scores + panel * kScorePanelStep, args.rows,
                  args.max == nullptr ? nullptr : args.max + panel * kPanel);
}

inline void tile_scores(const TileScoresArgs& args) noexcept {
  int row = 0;
  for (; row + 2 * kTileRows <= args.rows; row += 2 * kTileRows) score_groups<2>(args, row);
  if (row + kTileRows <= args.rows) {
    score_groups<1>(args, row);
    row += kTileRows;
  }
  if (row < args.rows) score_rest(args, row);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
