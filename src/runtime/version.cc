// The version number that the build defines. Runtime layer.
#include "quire/version.h"

namespace quire {

const char* version() noexcept { return QUIRE_VERSION; }

}  // namespace quire
