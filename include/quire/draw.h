// Drawings of masks and score mods for people: text for a terminal, SVG, and PNG where the library
// was built with libpng. A mod is drawn element by element where the elements fit, and in blocks
// where they do not; a score mod as a heat map of what it adds. BlockMask::to_string is the picture
// torch prints; this one shows more. Writes no files. Public; draw layer.
//
// All functions allocate what they return, may be called from any thread, and throw Error for sizes
// of 0, a batch or head that is not there, and, as evaluate does, for faults of the formula.
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
  kAscii,    // for terminals and fonts that have nothing else
  kColour,   // block characters and ANSI colours (256): twice the rows in the same height
};

struct DrawOptions {
  std::int64_t b = 0, h = 0;  // which (batch, head) is drawn
  /// Of a mod: how many batches and heads there are, and the q_idx of the first row. A block mask
  /// brings its own.
  std::int64_t batch = 1, heads = 1, q_begin = 0;
  std::string title = {};  // the formula if empty
  DrawStyle style = DrawStyle::kUnicode;
  /// draw(): columns of the picture, 8 to 1000; positions at its left take some more. It is half as
  /// many lines high, less where there are fewer queries than keys.
  int width = 64;
  /// draw_svg and draw_png: most cells along an axis, 8 to 2048. 0: 512, heat maps 128 in an SVG
  /// and 256 in a PNG.
  int cells = 0;
  float score = 0;  // of a score mod: the score that something is added to
  Executor* executor = nullptr;
};

/// The blocks of a mask. Where there are more than cells, a cell stands for several: full or empty
/// if all of them are.
QUIRE_API std::string draw(const BlockMask& mask, const DrawOptions& options = {});
/// The elements, if each can have a cell, else what create_block_mask finds for blocks as large as
/// a cell. q_len and kv_len are in 1..2^40.
QUIRE_API std::string draw(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                           const DrawOptions& options = {});
/// What the mod adds to a score of options.score: the mean of the elements of a cell that are not
/// hidden (-inf), over all keys and the middle 64 queries of the cell, fewer if that would be more
/// than 2^27 elements. q_len and kv_len are in 1..2^30.
QUIRE_API std::string draw(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                           const DrawOptions& options = {});

/// The same as a file of its own: SVG 1.1, UTF-8, no fonts or scripts from elsewhere.
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
