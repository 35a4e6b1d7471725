// In the place of png.cc where libpng was not found. Mask layer.
#include "mask/png.h"
#include "quire/error.h"

namespace quire::mask {

bool png_is_built() { return false; }

std::vector<std::uint8_t> encode_png(const Canvas&) {
  throw Error(ErrorKind::not_implemented,
              "[draw_png] this build has no PNG: libpng was not found when it was configured");
}

}  // namespace quire::mask
