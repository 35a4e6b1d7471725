// Encodes a canvas as a PNG file with libpng. Either png.cc or no_png.cc is built, depending on
// whether libpng was found. Draw layer.
#pragma once
#include <cstdint>
#include <vector>

#include "draw/canvas.h"

namespace quire::drawing {

bool png_is_built();
/// Throws Error(not_implemented) unless png_is_built().
std::vector<std::uint8_t> encode_png(const Canvas& canvas);

}  // namespace quire::drawing
