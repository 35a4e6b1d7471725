// PNG by libpng's simplified interface, which returns error messages and does not longjmp. Draw
// layer.
#include "draw/png.h"

#include <png.h>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::drawing {

bool png_is_built() { return true; }

std::vector<std::uint8_t> encode_png(const Canvas& canvas) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(canvas.width);
  image.height = static_cast<png_uint_32>(canvas.height);
  image.format = PNG_FORMAT_RGB;
  std::vector<std::uint8_t> bytes(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, canvas.rgb.data(), 0, nullptr) == 0)
    fail(ErrorKind::runtime, "draw_png", "libpng: {}", image.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace quire::drawing
