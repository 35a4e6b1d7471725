// The gallery as it stands in gallery.txt; its definition is made when the project is configured.
// Layer: mods.
#pragma once
#include <string_view>

namespace quire::mods {

extern const std::string_view kGalleryText;

}  // namespace quire::mods
