// Computes words of visible queries from runs and the mask program. Kernels layer.
#include "kernels/prefill/tile_visibility.h"

#include "kernels/prefill/visible_words.h"

namespace quire::kernels {

TileCoords coords_of(const QueryTile& tile, int64_t key, int rows) noexcept {
  TileCoords coords;
  coords.start[static_cast<int>(Coord::kB)] = tile.b;
  coords.start[static_cast<int>(Coord::kH)] = tile.h;
  coords.start[static_cast<int>(Coord::kQ)] = tile.q_idx;
  coords.start[static_cast<int>(Coord::kKv)] = key;
  coords.rows = rows;
  coords.lanes = tile.queries;
  return coords;
}

TileVisibility::TileVisibility(const TileProgram* mask, const TileFunctions& functions,
                               ScratchLayout& layout)
    : asked_(layout.take<uint64_t>(kTileKeys)), answers_(layout.take<uint64_t>(kTileKeys)) {
  if (mask == nullptr) return;
  runner_.emplace(*mask, functions, layout.take<char>(mask->scratch_bytes));
}

TileActivity TileVisibility::look(const QueryTile& tile, int64_t key, int rows,
                                  uint64_t* words) noexcept {
  VisibleWords found{words, asked_};
  switch (find_visible_words(tile, key, rows, found)) {
    case Visibility::kNone:
      return {};
    case Visibility::kAll:
      return full_activity(rows, tile.queries);
    case Visibility::kSome:
      break;
  }
  const int begin = found.asked_begin, end = found.asked_end;
  if (begin < end && runner_.has_value()) {
    runner_->begin(coords_of(tile, key + begin, end - begin));
    runner_->mask(answers_);
    for (int row = begin; row < end; ++row) words[row] |= asked_[row] & answers_[row - begin];
  } else {  // without a mask program, partial means visible
    for (int row = begin; row < end; ++row) words[row] |= asked_[row];
  }
  return find_activity(words, rows, tile.queries);
}

}  // namespace quire::kernels
