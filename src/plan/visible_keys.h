// VisibleKeys: what every query row and every query tile of a batch may see, in the form the
// kernels walk. BlockMaskKeys reads it from block masks, of a whole batch or one per sequence; each
// distinct mask is translated once. Plan layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/prefill/prefill.h"
#include "plan/mask_runs.h"
#include "quire/block_masks.h"

namespace quire::plan {

class VisibleKeys {
 public:
  virtual ~VisibleKeys() = default;

  /// What query `row` of a sequence that decodes sees.
  virtual kernels::KeyRuns row(std::int64_t sequence, std::int64_t h, std::int64_t row) const = 0;
  /// What the queries of a tile (kQueryTile rows) see, in a sequence that prefills: lanes and their
  /// runs.
  virtual std::span<const kernels::LaneRuns> tile(std::int64_t sequence, std::int64_t h,
                                                  std::int64_t tile) const = 0;
  /// Keys that the first queries of a tile see.
  virtual std::int64_t keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const = 0;
};

class BlockMaskKeys final : public VisibleKeys {
 public:
  /// `source` has masks. Lengths are those of the longest sequence; a mask of one sequence has its
  /// own.
  BlockMaskKeys(const BlockMasks& source, std::int64_t longest_q, std::int64_t longest_kv);

  kernels::KeyRuns row(std::int64_t sequence, std::int64_t h, std::int64_t row) const override;
  std::span<const kernels::LaneRuns> tile(std::int64_t sequence, std::int64_t h,
                                          std::int64_t tile) const override;
  /// The same for a plane of a mask; and how many tiles such a plane has.
  std::span<const kernels::LaneRuns> tile_of_plane(std::int64_t mask, std::int64_t plane,
                                                   std::int64_t tile) const;
  std::int64_t q_tiles(std::int64_t mask) const { return masks_[mask].q_tiles; }
  std::int64_t keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const override;

 private:
  struct OfMask {
    MaskRuns runs;
    std::int64_t block = 1;       // queries
    std::int64_t q_tiles = 0;     // of a plane
    std::int64_t first_tile = 0;  // of plane 0, in first_lane_runs_
  };
  const OfMask& of(std::int64_t sequence) const { return masks_[source_.mask_of(sequence)]; }
  void list_lane_runs(const OfMask& of, std::int64_t planes, std::int64_t q_len);

  BlockMasks source_;
  std::vector<OfMask> masks_;
  std::vector<kernels::LaneRuns> lane_runs_;
  std::vector<std::int64_t> first_lane_runs_{0};  // of every tile of every plane of every mask
};

}  // namespace quire::plan
