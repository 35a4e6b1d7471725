// draw, draw_svg and draw_png: choose the number of cells, make the picture, write it as text, SVG
// or PNG. Draw layer.
#include "quire/draw.h"

#include <algorithm>

#include "draw/picture.h"
#include "draw/png.h"
#include "draw/svg.h"
#include "draw/terminal.h"
#include "runtime/check_size.h"
#include "runtime/float_env.h"

namespace quire {

using namespace drawing;

namespace {

void check_width(const DrawOptions& options) {
  check_size("draw", "width", options.width, 8, 1000);
}

// Lengths that give a picture its proportions: those covered by the mask's blocks.
std::pair<std::int64_t, std::int64_t> drawn_lengths(const BlockMask& mask) {
  return {mask.q_blocks() * mask.block_size().q, mask.kv_blocks() * mask.block_size().kv};
}

CellLimit image_limit(std::int64_t q_len, std::int64_t kv_len, const DrawOptions& options,
                      int default_cells) {
  const int cells = options.cells == 0 ? default_cells : options.cells;
  check_size("draw", "cells", cells, 8, 2048);
  return fit_cells(q_len, kv_len, cells);
}

Sheet sheet_of(const BlockMask& mask, const DrawOptions& options) {
  const auto [q_len, kv_len] = drawn_lengths(mask);
  return lay_out(picture_of(mask, options, image_limit(q_len, kv_len, options, 512)));
}

template <class Mod>
Sheet sheet_of(const Mod& mod, std::int64_t q_len, std::int64_t kv_len, const DrawOptions& options,
               int default_cells) {
  const CellLimit limit = image_limit(q_len, kv_len, options, default_cells);
  return lay_out(picture_of(mod, q_len, kv_len, options, limit));
}

}  // namespace

std::string draw(const BlockMask& mask, const DrawOptions& options) {
  const FloatEnv float_env;
  check_width(options);
  const auto [q_len, kv_len] = drawn_lengths(mask);
  const auto picture = [&](bool halves) {
    return picture_of(mask, options, terminal_limit(q_len, kv_len, options.width, halves));
  };
  const Picture fine = picture(true);
  // If each row would take a whole line of its own, cells are made twice as high instead.
  const bool too_tall = cell_shape(fine, options.style, options.width) == CellShape::kTall &&
                        2 * fine.q.cells() > options.width;
  return terminal_text(too_tall ? picture(false) : fine, options.style, options.width);
}

std::string draw(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                 const DrawOptions& options) {
  const FloatEnv float_env;
  check_width(options);
  const CellLimit fine = terminal_limit(q_len, kv_len, options.width, true);
  const bool elements = q_len <= fine.q && kv_len <= fine.kv;
  const CellLimit limit = elements || options.style == DrawStyle::kColour
                              ? fine
                              : terminal_limit(q_len, kv_len, options.width, false);
  return terminal_text(picture_of(mod, q_len, kv_len, options, limit), options.style,
                       options.width);
}

std::string draw(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                 const DrawOptions& options) {
  const FloatEnv float_env;
  check_width(options);
  const CellLimit limit =
      terminal_limit(q_len, kv_len, options.width, options.style == DrawStyle::kColour);
  return terminal_text(picture_of(mod, q_len, kv_len, options, limit), options.style,
                       options.width);
}

std::string draw_svg(const BlockMask& mask, const DrawOptions& options) {
  const FloatEnv float_env;
  return svg_text(sheet_of(mask, options));
}
std::string draw_svg(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                     const DrawOptions& options) {
  const FloatEnv float_env;
  return svg_text(sheet_of(mod, q_len, kv_len, options, 512));
}
std::string draw_svg(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                     const DrawOptions& options) {
  const FloatEnv float_env;
  return svg_text(sheet_of(mod, q_len, kv_len, options, 128));
}

bool has_png() { return png_is_built(); }

std::vector<std::uint8_t> draw_png(const BlockMask& mask, const DrawOptions& options) {
  const FloatEnv float_env;
  return encode_png(paint(sheet_of(mask, options)));
}
std::vector<std::uint8_t> draw_png(const MaskMod& mod, std::int64_t q_len, std::int64_t kv_len,
                                   const DrawOptions& options) {
  const FloatEnv float_env;
  return encode_png(paint(sheet_of(mod, q_len, kv_len, options, 512)));
}
std::vector<std::uint8_t> draw_png(const ScoreMod& mod, std::int64_t q_len, std::int64_t kv_len,
                                   const DrawOptions& options) {
  const FloatEnv float_env;
  return encode_png(paint(sheet_of(mod, q_len, kv_len, options, 256)));
}

}  // namespace quire
