// A sheet as SVG. Mask layer.
#pragma once
#include <string>

#include "mask/draw_sheet.h"

namespace quire::mask {

/// Cells of one ink are one path of rectangles, in units of cells: `M3 0h5v2h-5z` is two rows of
/// five cells from column 3 of row 0. So the text follows the runs of a mask and not its area.
std::string svg_text(const Sheet& sheet);

}  // namespace quire::mask
