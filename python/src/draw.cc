// draw, draw_svg and draw_png of block masks, mask mods and score mods. Python layer.
#include "quire/draw.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "arguments.h"
#include "gil.h"
#include "mods.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

DrawStyle style_of(const std::string& name) {
  if (name == "unicode") return DrawStyle::kUnicode;
  if (name == "ascii") return DrawStyle::kAscii;
  if (name == "colour" || name == "color") return DrawStyle::kColour;
  throw nb::value_error("[draw] style must be 'unicode', 'ascii' or 'colour'");
}

// Sizes of pictures; numbers too large for an int are rejected like the largest int.
int small_number(const char* name, nb::handle value) {
  using Limits = std::numeric_limits<int>;
  return static_cast<int>(
      std::clamp<std::int64_t>(whole_number("draw", name, value), Limits::min(), Limits::max()));
}

// Keyword arguments with the names of DrawOptions.
DrawOptions options_of(const nb::kwargs& given) {
  DrawOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "b")
      options.b = whole_number("draw", "b", value);
    else if (name == "h")
      options.h = whole_number("draw", "h", value);
    else if (name == "batch")
      options.batch = whole_number("draw", "batch", value);
    else if (name == "heads")
      options.heads = whole_number("draw", "heads", value);
    else if (name == "q_begin")
      options.q_begin = whole_number("draw", "q_begin", value);
    else if (name == "title")
      options.title = plain_text("draw", "title", value);
    else if (name == "style")
      options.style = style_of(plain_text("draw", "style", value));
    else if (name == "width")
      options.width = small_number("width", value);
    else if (name == "cells")
      options.cells = small_number("cells", value);
    else if (name == "score")
      options.score = static_cast<float>(real_number("draw", "score", value));
    else
      throw nb::type_error(("[draw] unknown option '" + name + "'").c_str());
  }
  return options;
}

std::int64_t length_of(const char* name, nb::handle length) {
  if (length.is_none()) throw nb::type_error("[draw] a mod is drawn for a q_len and a kv_len");
  return whole_number("draw", name, length);
}

// Calls draw(what, q_len, kv_len, options) for one of three kinds of picture, without the GIL.
template <class Draw>
auto draw_any(nb::handle what, nb::handle q_len, nb::handle kv_len, const nb::kwargs& given,
              const Draw& draw) {
  const DrawOptions options = options_of(given);
  if (nb::isinstance<BlockMask>(what)) {
    if (!q_len.is_none() || !kv_len.is_none())
      throw nb::type_error("[draw] a block mask brings its own lengths");
    const BlockMask mask = nb::cast<const BlockMask&>(what);
    const ReleasedGil released;
    return draw(mask, options);
  }
  const std::int64_t queries = length_of("q_len", q_len);
  const std::int64_t keys = kv_len.is_none() ? queries : length_of("kv_len", kv_len);
  if (nb::isinstance<ScoreMod>(what)) {
    const ScoreMod mod = nb::cast<const ScoreMod&>(what);
    const ReleasedGil released;
    return draw(mod, queries, keys, options);
  }
  const MaskMod mod = mask_mod_of(what);
  const ReleasedGil released;
  return draw(mod, queries, keys, options);
}

nb::bytes png_of(nb::handle what, nb::handle q_len, nb::handle kv_len, const nb::kwargs& given) {
  const std::vector<std::uint8_t> png =
      draw_any(what, q_len, kv_len, given, [](const auto&... args) { return draw_png(args...); });
  return nb::bytes(png.data(), png.size());
}

}  // namespace

void register_draw(nb::module_& module) {
  module.def(
      "draw",
      [](nb::handle what, nb::handle q_len, nb::handle kv_len, const nb::kwargs& options) {
        return draw_any(what, q_len, kv_len, options,
                        [](const auto&... args) { return draw(args...); });
      },
      nb::arg("what"), nb::arg("q_len") = nb::none(), nb::arg("kv_len") = nb::none(),
      nb::arg("options"),
      R"doc(A picture for a terminal: of a BlockMask, or of a mod over q_len queries and kv_len keys (as many if not given). Options: b, h,
batch, heads, q_begin, title, style ('unicode', 'ascii', 'colour'), width, score.

>>> import quire
>>> print(quire.draw("q_idx >= kv_idx", 4, style="ascii").rstrip())
q_idx >= kv_idx
batch 0 of 1, head 0 of 1; 4 queries x 4 keys; a cell: an element
<BLANKLINE>
kv_idx  0   2   4
 q_idx ++---+---+
     0 +##......|
     1 +####....|
     2 +######..|
     3 +########|
     4 +--------+
<BLANKLINE>
# visible   . hidden)doc");
  module.def(
      "draw_svg",
      [](nb::handle what, nb::handle q_len, nb::handle kv_len, const nb::kwargs& options) {
        return draw_any(what, q_len, kv_len, options,
                        [](const auto&... args) { return draw_svg(args...); });
      },
      nb::arg("what"), nb::arg("q_len") = nb::none(), nb::arg("kv_len") = nb::none(),
      nb::arg("options"), R"doc(The same as an SVG file; `cells` is the most cells along an axis.

>>> import quire
>>> quire.draw_svg(quire.mods.alibi(8), 64, heads=8, h=3).startswith("<svg")
True)doc");
  module.def("draw_png", &png_of, nb::arg("what"), nb::arg("q_len") = nb::none(),
             nb::arg("kv_len") = nb::none(), nb::arg("options"),
             R"doc(The same as the bytes of a PNG file, where the library was built with libpng.

>>> import quire
>>> not quire.info()["has_png"] or quire.draw_png("q_idx >= kv_idx", 64)[1:4] == b"PNG"
True)doc");
}

}  // namespace quire::python
