// Divides the rows of block masks into query tiles of the kernels. Plan layer.
#include "plan/visible_keys.h"

#include <algorithm>

#include "mask/block_rows.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

using kernels::kQueryTile;

BlockMaskKeys::BlockMaskKeys(const BlockMasks& source, std::int64_t longest_q,
                             std::int64_t longest_kv)
    : source_(source) {
  masks_.reserve(source_.masks().size());
  for (const BlockMask& mask : source_.masks()) {
    const auto [own_q, own_kv] = mask.seq_lengths();
    const std::int64_t q_len = source_.is_per_sequence() ? own_q : longest_q;
    masks_.push_back({.runs = MaskRuns(mask, source_.is_per_sequence() ? own_kv : longest_kv),
                      .block = mask.block_size().q,
                      .q_tiles = ceil_div(q_len, kQueryTile),
                      .first_tile = static_cast<std::int64_t>(first_lane_runs_.size()) - 1});
    list_lane_runs(masks_.back(), mask.block_rows().planes(), q_len);
  }
}

// For each stored plane and query tile: the rows of blocks it touches and the lanes each has.
void BlockMaskKeys::list_lane_runs(const OfMask& of, std::int64_t planes, std::int64_t q_len) {
  const std::int64_t size = of.block;
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    for (std::int64_t begin = 0; begin < q_len; begin += kQueryTile) {
      const std::int64_t end = std::min<std::int64_t>(begin + kQueryTile, q_len);
      for (std::int64_t row = begin / size; row * size < end; ++row) {
        lane_runs_.push_back(
            {.lane_begin = static_cast<int>(std::max(row * size - begin, std::int64_t{0})),
             .lane_end = static_cast<int>(std::min((row + 1) * size, end) - begin),
             .visible = of.runs.row(plane, row)});
      }
      first_lane_runs_.push_back(static_cast<std::int64_t>(lane_runs_.size()));
    }
  }
}

kernels::KeyRuns BlockMaskKeys::row(std::int64_t sequence, std::int64_t h, std::int64_t row) const {
  const OfMask& mask = of(sequence);
  return mask.runs.row(source_.plane(sequence, h), row / mask.block);
}

std::span<const kernels::LaneRuns> BlockMaskKeys::tile(std::int64_t sequence, std::int64_t h,
                                                       std::int64_t tile) const {
  return tile_of_plane(source_.mask_of(sequence), source_.plane(sequence, h), tile);
}

std::span<const kernels::LaneRuns> BlockMaskKeys::tile_of_plane(std::int64_t mask_number,
                                                                std::int64_t plane,
                                                                std::int64_t tile) const {
  const OfMask& mask = masks_[mask_number];
  const std::size_t at = mask.first_tile + plane * mask.q_tiles + tile;
  return {lane_runs_.data() + first_lane_runs_[at],
          static_cast<std::size_t>(first_lane_runs_[at + 1] - first_lane_runs_[at])};
}

std::int64_t BlockMaskKeys::keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const {
  const OfMask& mask = of(sequence);
  return mask.runs.visible_keys(source_.plane(sequence, h), tile * kQueryTile / mask.block);
}

}  // namespace quire::plan
