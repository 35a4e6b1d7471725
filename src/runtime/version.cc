// The version as the build says it.
#include "quire/version.h"

namespace quire {

const char* version() noexcept { return QUIRE_VERSION; }

}  // namespace quire
