// Canvas: a sheet rasterised on a light background, 2 x 2 dots per pixel of the sheet. PNG needs
// it; SVG and the terminal do not. Draw layer.
#pragma once
#include <cstdint>
#include <vector>

#include "draw/sheet.h"

namespace quire::drawing {

struct Canvas {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]
};

Canvas paint(const Sheet& sheet);

/// The built-in font: printable ASCII, 5 x 9 dots per character, two of the nine rows below the
/// baseline.
inline constexpr int kGlyphWidth = 5, kGlyphHeight = 9, kGlyphDescent = 2;

/// Whether a dot of a character is set. Characters other than printable ASCII look like '?'.
bool glyph_dot(char character, int row, int col);

}  // namespace quire::drawing
