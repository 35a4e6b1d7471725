// TileVisibility: which of some keys the queries of a tile may see: by the runs of the block mask,
// and by the mask program where these leave it open. Kernels layer.
#pragma once
#include <cstdint>
#include <optional>

#include "kernels/forward_problem.h"
#include "kernels/prefill/last_look.h"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/tile_activity.h"
#include "kernels/scratch_layout.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// The coordinates of `rows` keys from `key` on and the queries of a tile, for a program with
/// queries across the lanes.
TileCoords coords_of(const QueryTile& tile, int64_t key, int rows) noexcept;

class TileVisibility {
 public:
  /// mask: null if partial means visible.
  TileVisibility(const TileProgram* mask, const TileFunctions& functions, ScratchLayout& layout);

  /// `rows` keys from `key` on, at most 256. words: [256], filled in unless the activity is empty
  /// or full.
  TileActivity look(const QueryTile& tile, int64_t key, int rows, uint64_t* words) noexcept;

  /// The same, if `last` of this run and program does not know it; what is found is kept there.
  TileActivity look(const QueryTile& tile, int64_t key, int rows, uint64_t* words,
                    LastLook& last) noexcept;

  /// Of the mask program; null without one.
  const TileFault* fault() const { return runner_ ? &runner_->fault() : nullptr; }

 private:
  uint64_t *asked_, *answers_, *chosen_;  // [256]
  std::optional<TileRunner> runner_;
};

}  // namespace quire::kernels
