// Reads the format of gallery.txt, which the file itself describes. Does not look into the
// formulas. Layer: mods.
#pragma once
#include <string_view>
#include <vector>

#include "quire/mods.h"

namespace quire::mods {

/// Throws Error, with the number of the line, for a text that is not in the format, for an entry
/// without one of its fields and for a name that stands twice.
std::vector<GalleryEntry> parse_gallery(std::string_view text);

}  // namespace quire::mods
