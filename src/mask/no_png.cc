// In the place of png.cc where libpng was not found. Mask layer.
#include "mask/png.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::mask {

bool png_is_built() { return false; }

std::vector<std::uint8_t> encode_png(const Canvas&) {
  fail(ErrorKind::not_implemented, "draw_png",
       "this build has no PNG: libpng was not found when it was configured");
}

}  // namespace quire::mask
