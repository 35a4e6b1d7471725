// The playground page, as built by scripts/build-play before this program. Command line
// layer.
#pragma once
#include <string_view>

namespace quire::cli {

/// Empty if it was not built.
std::string_view play_page();

}  // namespace quire::cli
