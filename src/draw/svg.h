// Writes a sheet as an SVG document. Draw layer.
#pragma once
#include <string>

#include "draw/sheet.h"

namespace quire::drawing {

/// The cells of one ink are one path of rectangles, in units of cells: `M3 0h5v2h-5z` is two rows
/// of five cells from column 3 of row 0. So the text grows with the runs of a mask, not its area.
std::string svg_text(const Sheet& sheet);

}  // namespace quire::drawing
