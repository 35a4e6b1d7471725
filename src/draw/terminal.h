// Writes a picture as text for a terminal: framed cells with positions and a legend. Draw layer.
#pragma once
#include <cstdint>
#include <string>

#include "draw/picture.h"

namespace quire::drawing {

/// How cells become characters. A character is about twice as high as it is wide.
enum class CellShape : std::uint8_t {
  kWide,  // two characters a cell
  kTall,  // one character a cell
  kHalf,  // a character for two cells, one above the other
};

/// Wide where there is room. Half where the character can tell all that two cells may be: in
/// colour, and for cells that are either visible or hidden.
CellShape cell_shape(const Picture& picture, DrawStyle style, int width);

/// The most cells for a picture of this size; `halves` if its cells can be halves of characters.
CellLimit terminal_limit(std::int64_t q_len, std::int64_t kv_len, int width, bool halves);

/// The picture has at most as many cells as terminal_limit allows.
std::string terminal_text(const Picture& picture, DrawStyle style, int width);

}  // namespace quire::drawing
