// Causal masks: a token sees itself and what came before it. Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// q_idx >= kv_idx. The decoder of Vaswani et al., "Attention Is All You Need", 2017. For q_len !=
// kv_len this is the top-left alignment: query 0 sees key 0 alone.
MaskMod causal() {
  const FloatEnv float_env;
  return [](auto, auto, auto q, auto kv) { return q >= kv; };
}

// q_idx + (kv_len - q_len) >= kv_idx. The alignment of FlashAttention from version 2.1 (2023) on:
// the last query sees all keys. Where there are more queries than keys, the first q_len - kv_len
// see none.
MaskMod causal_bottom_right(std::int64_t q_len, std::int64_t kv_len) {
  const FloatEnv float_env;
  check_at_least("causal_bottom_right", "q_len", q_len, 0);
  check_at_least("causal_bottom_right", "kv_len", kv_len, 0);
  const std::int64_t shift = kv_len - q_len;
  return [shift](auto, auto, auto q, auto kv) { return q + shift >= kv; };
}

}  // namespace quire::mods
