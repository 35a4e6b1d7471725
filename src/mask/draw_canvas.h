// Canvas: a sheet as dots, two for each of its pixels in both directions. On a light ground. Mask
// layer.
#pragma once
#include <cstdint>
#include <vector>

#include "mask/draw_sheet.h"

namespace quire::mask {

struct Canvas {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]
};

Canvas paint(const Sheet& sheet);

}  // namespace quire::mask
