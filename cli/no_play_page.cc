// In the place of play_page.cc where the page was not built. Command line layer.
#include "play_page.h"

namespace quire::cli {

std::string_view play_page() { return {}; }

}  // namespace quire::cli
