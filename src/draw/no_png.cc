// Built instead of png.cc when libpng was not found. Draw layer.
#include "draw/png.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::drawing {

bool png_is_built() { return false; }

std::vector<std::uint8_t> encode_png(const Canvas&) {
  fail(ErrorKind::not_implemented, "draw_png",
       "this build has no PNG: libpng was not found when it was configured");
}

}  // namespace quire::drawing
