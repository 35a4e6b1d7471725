// ChunkTiles: a block mask transposed to what the backward pass walks: for each chunk of keys the
// query tiles that may see something of it, and its place among all chunks that a tile sees.
// Without a mask every tile sees every chunk. Plan layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/visible_keys.h"
#include "quire/block_masks.h"

namespace quire::plan {

struct ChunkTile {
  std::int32_t tile = 0;
  std::int32_t turn = 0;  // how many chunks before this one the tile sees
};

class ChunkTiles {
 public:
  /// visible: made from `source`. longest_kv: keys of the longest sequence.
  ChunkTiles(const BlockMasks& source, const BlockMaskKeys& visible, std::int64_t longest_kv,
             std::int64_t chunk_keys);

  /// Descending by tile.
  std::span<const ChunkTile> of(std::int64_t sequence, std::int64_t h, std::int64_t chunk) const;

  std::size_t bytes() const;

 private:
  void add_plane(const BlockMaskKeys& visible, std::int64_t mask, std::int64_t plane,
                 std::int64_t chunks, std::int64_t chunk_keys);

  BlockMasks source_;
  struct OfMask {
    std::int64_t first = 0;   // of plane 0, in first_
    std::int64_t chunks = 0;  // of a plane
  };
  std::vector<OfMask> masks_;
  std::vector<std::int64_t> first_{0};  // of every chunk of every plane of every mask
  std::vector<ChunkTile> tiles_;
};

}  // namespace quire::plan
