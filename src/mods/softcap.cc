// Soft-cap: scores are squeezed into -cap .. cap. Gemma Team, "Gemma 2", 2024 (cap 50); Grok-1,
// 2024 (cap 30). Mods layer.
#include <cmath>

#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::mods {

// cap * tanh(score / cap)
ScoreMod softcap(double cap) {
  const FloatEnv float_env;
  if (!(cap > 0) || !std::isfinite(cap))
    fail(ErrorKind::value, "softcap", "cap must be positive and finite; got {}", cap);
  return [cap](auto score, auto, auto, auto, auto) { return cap * tanh(score / cap); };
}

}  // namespace quire::mods
