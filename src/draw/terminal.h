// Writes a picture as text for a terminal: framed cells with positions and a legend. Draw layer.
#pragma once
#include <cstdint>
#include <string>

#include "draw/picture.h"

namespace quire::drawing {

/// How cells become characters. A character is about twice as high as it is wide.
enum class CellShape : std::uint8_t {
  kWide,  // two characters per cell
  kTall,  // one character per cell
  kHalf,  // one character for two cells, one above the other
};

/// Wide if there is room. Half if one character can show any pair of cells: in colour, and for
/// cells that are either visible or hidden.
CellShape cell_shape(const Picture& picture, DrawStyle style, int width);

/// The most cells for a picture of this size; `halves`: cells can be half a character.
CellLimit terminal_limit(std::int64_t q_len, std::int64_t kv_len, int width, bool halves);

/// The picture has at most as many cells as terminal_limit allows.
std::string terminal_text(const Picture& picture, DrawStyle style, int width);

}  // namespace quire::drawing
