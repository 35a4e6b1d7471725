// Which part of a tile of 256 keys by 64 queries has to be computed: groups of 16 keys by panels of
// 16 queries, found from one word of visible queries per key. Kernels layer.
#pragma once
#include <cstdint>

#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

inline constexpr int kKeyGroup = 16;
inline constexpr int kKeyGroups = kTileKeys / kKeyGroup;

/// 16 keys of a tile. Nothing outside these rows and panels is visible; no rows: nothing at all.
struct GroupActivity {
  int16_t row_begin = 0, row_end = 0;  // counted from the tile's first key
  int8_t panel_begin = 0, panel_end = 0;
  bool masked = false;  // something inside is hidden

  bool empty() const { return row_begin == row_end; }
};

struct TileActivity {
  bool any = false;    // something is visible
  bool full = false;   // everything is
  bool holes = false;  // a key inside a group's rows is hidden from all: it must not be read
  uint16_t of_panel[kQueryPanels] = {};  // groups of which a panel sees something, a bit each
  GroupActivity groups[kKeyGroups];

  /// Group g and adjacent ones with the same panels as one block; g moves past them. Masked groups
  /// stay alone unless `with_masked`.
  GroupActivity take_block(int& g, bool with_masked) const noexcept;
};

/// Everything is visible in the first `rows` keys, by `queries` queries.
TileActivity full_activity(int rows, int queries) noexcept;

/// words[row]: bit i if query i sees key `row`; bits from `queries` on do not matter.
TileActivity find_activity(const uint64_t* words, int rows, int queries) noexcept;

}  // namespace quire::kernels
