// Drawings of masks and score mods: text for a terminal, SVG, and PNG if the library was built with
// libpng. A mod is drawn element by element if that fits, otherwise in blocks; a score mod as a
// heat map of what it adds. BlockMask::to_string prints torch's picture; these show more. Writes no
// files. Public; draw layer.
//
// All functions allocate what they return, may be called from any thread, and throw Error for sizes
// of 0, a batch or head out of range and, as evaluate does, for faults of the formula.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/mod.h"

namespace quire {

/// What a terminal can show.
enum class DrawStyle : std::uint8_t {
  kUnicode,  // block characters; the default, for files and pipes too
  kAscii,    // for terminals and fonts without block characters
  kColour,   // block characters and ANSI colours (256): twice the rows in the same height
};

struct DrawOptions {
  std::int64_t b = 0, h = 0;  // which (batch, head) is drawn
  /// For a mod: the number of batches and heads, and the q_idx of the first row. A block mask has
  /// its own.
  std::int64_t batch = 1, heads = 1, q_begin = 0;
  std::string title = {};  // the formula if empty
  DrawStyle style = DrawStyle::kUnicode;
  /// draw(): columns of the picture, 8 to 1000, not counting the positions at its left. Its height
  /// is half as many lines, fewer if there are fewer queries than keys.
  int width = 64;
  /// draw_svg and draw_png: most cells along an axis, 8 to 2048. 0 means 512; for heat maps 128 in
  /// an SVG and 256 in a PNG.
  int cells = 0;
  float score = 0;  // for a score mod: the score that it is applied to
  Executor* executor = nullptr;
};

/// The blocks of a mask. If there are more blocks than cells, a cell stands for several: full or
/// empty if all of them are.
QUIRE_API std::string draw(const BlockMask& mask, const DrawOptions& options = {});
/// The elements, if each can have a cell; otherwise what create_block_mask finds for blocks of the
/// size of a cell. q_len and kv_len are in 1..2^40.
QUIRE_API std::string draw(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                           const DrawOptions& options = {});
/// What the mod adds to options.score: the mean over the elements of a cell that are not hidden
/// (-inf), taken over all its keys and its middle 64 queries, fewer if that exceeds 2^27 elements.
/// q_len and kv_len are in 1..2^30.
QUIRE_API std::string draw(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                           const DrawOptions& options = {});

/// The same as a self-contained file: SVG 1.1, UTF-8, no external fonts or scripts.
QUIRE_API std::string draw_svg(const BlockMask& mask, const DrawOptions& options = {});
QUIRE_API std::string draw_svg(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                               const DrawOptions& options = {});
QUIRE_API std::string draw_svg(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                               const DrawOptions& options = {});

/// Whether the library was built with libpng.
QUIRE_API bool has_png();
/// The same as the bytes of a PNG file. Throws Error(not_implemented) unless has_png().
QUIRE_API std::vector<std::uint8_t> draw_png(const BlockMask& mask,
                                             const DrawOptions& options = {});
QUIRE_API std::vector<std::uint8_t> draw_png(const MaskMod& mod, std::int64_t q_len,
                                             std::int64_t kv_len, const DrawOptions& options = {});
QUIRE_API std::vector<std::uint8_t> draw_png(const ScoreMod& mod, std::int64_t q_len,
                                             std::int64_t kv_len, const DrawOptions& options = {});

}  // namespace quire
