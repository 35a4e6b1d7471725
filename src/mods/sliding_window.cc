// Sliding windows: a token sees its neighbourhood. Beltagy et al., "Longformer", 2020 (two-sided);
// Jiang et al., "Mistral 7B", 2023 (one-sided). Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// (q_idx >= kv_idx) & (q_idx - kv_idx < size)
MaskMod sliding_window(std::int64_t size) {
  const FloatEnv float_env;
  check_at_least("sliding_window", "size", size, 1);
  return [size](auto, auto, auto q, auto kv) { return (q >= kv) & (q - kv < size); };
}

// (q_idx - kv_idx <= left) & (kv_idx - q_idx <= right)
MaskMod sliding_window(std::int64_t left, std::int64_t right) {
  const FloatEnv float_env;
  check_at_least("sliding_window", "left", left, 0);
  check_at_least("sliding_window", "right", right, 0);
  return [=](auto, auto, auto q, auto kv) { return (q - kv <= left) & (kv - q <= right); };
}

}  // namespace quire::mods
