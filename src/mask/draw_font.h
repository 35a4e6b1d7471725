// A small font of its own for PNG pictures: printable ASCII, 5 x 9 dots a character, two of the
// nine rows below the line. Mask layer.
#pragma once
#include <cstdint>

namespace quire::mask {

inline constexpr int kGlyphWidth = 5, kGlyphHeight = 9, kGlyphDescent = 2;

/// Whether a dot of a character is black. Other characters than printable ASCII look like '?'.
bool glyph_dot(char character, int row, int col);

}  // namespace quire::mask
