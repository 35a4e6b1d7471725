// Picture: the content of a drawing, independent of the output format: a grid of cells (each with a
// kind and, for a score mod, a value), two axes, a title and a caption. Made once from a block mask
// or a mod; terminal text, SVG and PNG are all generated from it. Draw layer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quire/block_mask.h"
#include "quire/draw.h"
#include "quire/mod.h"
#include "runtime/ceil_div.h"

namespace quire::drawing {

enum class CellKind : std::uint8_t {
  kHidden,    // an empty block, a hidden element, a score of -inf
  kPartial,   // a block with visible and hidden elements; never an element
  kVisible,   // a full block, a visible element, an element with a value
  kNan,       // of a score mod
  kInfinite,  // of a score mod: +inf
};

struct Axis {
  std::string name;
  std::int64_t begin = 0;   // first position
  std::int64_t length = 1;  // number of positions
  std::int64_t step = 1;    // positions per cell; the last cell may have fewer

  std::int64_t cells() const { return ceil_div(length, step); }
};

struct Picture {
  std::string title, caption;
  Axis q, kv;
  bool elements = false;        // a cell is an element: visible or hidden, not full or empty
  std::vector<CellKind> kinds;  // [q.cells, kv.cells]
  std::vector<float> values;    // [q.cells, kv.cells], empty for a mask

  bool is_heat_map() const { return !values.empty(); }
  bool has(CellKind kind) const;
  CellKind kind(std::int64_t row, std::int64_t col) const { return kinds[row * kv.cells() + col]; }
};

/// The most cells a picture may have.
struct CellLimit {
  std::int64_t q = 1, kv = 1;
};

/// Cells in the proportions of the sequence: the longer axis gets `longest`, the other its share,
/// at least an eighth, so that one query over many keys is visible. (4096, 4096, 64): 64 x 64.
/// (1024, 4096, 64): 16 x 64. (1, 4096, 64): 8 x 64.
CellLimit fit_cells(std::int64_t q_len, std::int64_t kv_len, std::int64_t longest);

/// Positions for labels: the first, the last and multiples of a round step between them, about
/// `most` of them. Lengths that are multiples of a power of two get such steps.
/// (0, 4096, 8): 0, 512, ... 4096. (0, 100, 5): 0, 20, ... 100. (3, 1, 8): 3, 4.
std::vector<std::int64_t> tick_positions(std::int64_t begin, std::int64_t length,
                                         std::int64_t most);

/// Throws Error if there is no such (batch, head) or there are no blocks.
Picture picture_of(const BlockMask& mask, const DrawOptions& options, const CellLimit& limit);
/// Elements if both lengths are within the limit, otherwise blocks of the size of a cell.
Picture picture_of(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                   const DrawOptions& options, const CellLimit& limit);
/// Means of what is added, as described at draw(ScoreMod).
Picture picture_of(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                   const DrawOptions& options, const CellLimit& limit);

}  // namespace quire::drawing
