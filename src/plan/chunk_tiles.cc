// Transposes lists of chunks per tile to lists of tiles per chunk. Plan layer.
#include "plan/chunk_tiles.h"

#include <algorithm>

#include "mask/block_rows.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

ChunkTiles::ChunkTiles(const BlockMasks& source, const BlockMaskKeys& visible,
                       std::int64_t longest_kv, std::int64_t chunk_keys)
    : source_(source) {
  for (std::size_t i = 0; i < source_.masks().size(); ++i) {
    const BlockMask& mask = source_.masks()[i];
    const std::int64_t kv_len = source_.is_per_sequence() ? mask.seq_lengths().second : longest_kv;
    const std::int64_t chunks = ceil_div(kv_len, chunk_keys);
    masks_.push_back({static_cast<std::int64_t>(first_.size()) - 1, chunks});
    for (std::int64_t plane = 0; plane < mask.block_rows().planes(); ++plane)
      add_plane(visible, static_cast<std::int64_t>(i), plane, chunks, chunk_keys);
  }
}

void ChunkTiles::add_plane(const BlockMaskKeys& visible, std::int64_t mask, std::int64_t plane,
                           std::int64_t chunks, std::int64_t chunk_keys) {
  const std::int64_t q_tiles = visible.q_tiles(mask);
  std::vector<char> sees(chunks);
  std::vector<std::vector<ChunkTile>> of_chunk(chunks);
  for (std::int64_t tile = q_tiles - 1; tile >= 0; --tile) {
    std::fill(sees.begin(), sees.end(), 0);
    for (const kernels::LaneRuns& lanes : visible.tile_of_plane(mask, plane, tile)) {
      for (std::int64_t i = 0; i < lanes.visible.count; ++i) {
        const kernels::KeyRun& run = lanes.visible.runs[i];
        for (std::int64_t chunk = run.begin / chunk_keys; chunk * chunk_keys < run.end; ++chunk)
          sees[chunk] = 1;
      }
    }
    std::int32_t turn = 0;
    for (std::size_t chunk = 0; chunk < sees.size(); ++chunk)
      if (sees[chunk] != 0) of_chunk[chunk].push_back({static_cast<std::int32_t>(tile), turn++});
  }
  for (const std::vector<ChunkTile>& tiles : of_chunk) {
    tiles_.insert(tiles_.end(), tiles.begin(), tiles.end());
    first_.push_back(static_cast<std::int64_t>(tiles_.size()));
  }
}

std::span<const ChunkTile> ChunkTiles::of(std::int64_t sequence, std::int64_t h,
                                          std::int64_t chunk) const {
  const OfMask& mask = masks_[source_.mask_of(sequence)];
  const std::size_t at = mask.first + source_.plane(sequence, h) * mask.chunks + chunk;
  return {tiles_.data() + first_[at], static_cast<std::size_t>(first_[at + 1] - first_[at])};
}

std::size_t ChunkTiles::bytes() const {
  return tiles_.size() * sizeof(ChunkTile) + first_.size() * sizeof(first_[0]);
}

}  // namespace quire::plan
