// Prefix language model: the prefix is visible to every token, itself included; the rest is causal.
// Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
// Transformer" (T5), 2019; Dong et al., UniLM, 2019. Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// (kv_idx < length) | (q_idx >= kv_idx)
MaskMod prefix_lm(std::int64_t length) {
  const FloatEnv float_env;
  check_at_least("prefix_lm", "length", length, 0);
  return [length](auto, auto, auto q, auto kv) { return (kv < length) | (q >= kv); };
}

// (kv_idx < lengths[b]) | (q_idx >= kv_idx)
MaskMod prefix_lm(const Table& lengths) {
  const FloatEnv float_env;
  const Buffer table = batch_table("prefix_lm", "lengths", lengths);
  return [&](auto b, auto, auto q, auto kv) { return (kv < of_batch(table, b)) | (q >= kv); };
}

}  // namespace quire::mods
