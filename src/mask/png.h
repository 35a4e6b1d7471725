// A canvas as the bytes of a PNG file, by libpng. Of png.cc and no_png.cc one is built, depending
// on whether libpng was found. Mask layer.
#pragma once
#include <cstdint>
#include <vector>

#include "mask/draw_canvas.h"

namespace quire::mask {

bool png_is_built();
/// Throws Error(not_implemented) unless png_is_built().
std::vector<std::uint8_t> encode_png(const Canvas& canvas);

}  // namespace quire::mask
