// amx_is_usable, the one function that tests replace. Runtime layer.
#include "runtime/amx.h"

namespace quire {

bool amx_is_usable() noexcept { return system_gives_amx(); }

}  // namespace quire
