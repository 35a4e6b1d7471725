// Built instead of play_page.cc when there is no page. Command line layer.
#include "play_page.h"

namespace quire::cli {

std::string_view play_page() { return {}; }

}  // namespace quire::cli
