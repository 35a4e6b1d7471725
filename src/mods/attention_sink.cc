// Attention sinks: a few initial keys that every query sees. Xiao et al., "Efficient Streaming
// Language Models with Attention Sinks", 2023. Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// kv_idx < count
MaskMod attention_sink(std::int64_t count) {
  const FloatEnv float_env;
  check_at_least("attention_sink", "count", count, 0);
  return [count](auto, auto, auto, auto kv) { return kv < count; };
}

// (q_idx >= kv_idx) & ((kv_idx < sinks) | (q_idx - kv_idx < window))
MaskMod streaming(std::int64_t sinks, std::int64_t window) {
  const FloatEnv float_env;
  check_at_least("streaming", "sinks", sinks, 0);
  check_at_least("streaming", "window", window, 1);
  return
      [=](auto, auto, auto q, auto kv) { return (q >= kv) & ((kv < sinks) | (q - kv < window)); };
}

}  // namespace quire::mods
