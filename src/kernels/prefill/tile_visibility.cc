// Computes words of visible queries from runs and the mask program. Kernels layer.
#include "kernels/prefill/tile_visibility.h"

#include <algorithm>

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

namespace {

// Words of the queries that chose each key. False: no query chose any of these keys.
bool find_chosen_words(const QueryTile& tile, int64_t key, int rows, uint64_t* words) noexcept {
  std::fill_n(words, rows, 0);
  bool any = false;
  for (int lane = 0; lane < tile.queries; ++lane) {
    const KeyList& list = tile.chosen[lane];
    const int32_t* const end = list.keys + list.count;
    for (const int32_t* at = list.from(key); at != end && *at < key + rows; ++at) {
      words[*at - key] |= uint64_t{1} << lane;
      any = true;
    }
  }
  return any;
}

}  // namespace

TileVisibility::TileVisibility(const TileProgram* mask, const TileFunctions& functions,
                               ScratchLayout& layout)
    : asked_(layout.take<uint64_t>(kTileKeys)),
      answers_(layout.take<uint64_t>(kTileKeys)),
      chosen_(layout.take<uint64_t>(kTileKeys)) {
  if (mask == nullptr) return;
  runner_.emplace(*mask, functions, layout.take<char>(mask->scratch_bytes));
}

TileActivity TileVisibility::look(const QueryTile& tile, int64_t key, int rows,
                                  uint64_t* words) noexcept {
  const bool chooses = tile.chosen != nullptr;
  if (chooses && !find_chosen_words(tile, key, rows, chosen_)) return {};
  VisibleWords found{words, asked_};
  switch (find_visible_words(tile, key, rows, found)) {
    case Visibility::kNone:
      return {};
    case Visibility::kAll:
      if (!chooses) return full_activity(rows, tile.queries);
      std::copy_n(chosen_, rows, words);
      return find_activity(words, rows, tile.queries);
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
  for (int row = 0; chooses && row < rows; ++row) words[row] &= chosen_[row];
  return find_activity(words, rows, tile.queries);
}

TileActivity TileVisibility::look(const QueryTile& tile, int64_t key, int rows, uint64_t* words,
                                  LastLook& last) noexcept {
  if (last.is_of(tile, key, rows)) return last.repeat(words);
  const TileActivity found = look(tile, key, rows, words);
  if (found.any && !found.full) last.keep(tile, key, rows, words, found);
  return found;
}

}  // namespace quire::kernels
