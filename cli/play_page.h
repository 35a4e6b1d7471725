// The page to play on, as it was built by scripts/build-play before this program was. Command line
// layer.
#pragma once
#include <string_view>

namespace quire::cli {

/// Empty if there was none.
std::string_view play_page();

}  // namespace quire::cli
