// The text of gallery.txt and its parser. The file describes the format; formulas are not examined
// here. Mods layer.
#pragma once
#include <string_view>
#include <vector>

#include "quire/mods.h"

namespace quire::mods {

/// gallery.txt; defined in a source that is generated when the project is configured.
extern const std::string_view kGalleryText;

/// Throws Error, with the line number, for a text that is not in the format, for an entry that
/// lacks a field and for a duplicate name.
std::vector<GalleryEntry> parse_gallery(std::string_view text);

}  // namespace quire::mods
