// Shared prefix: several continuations (answers, branches of a search) packed after one prompt.
// Each sees the prompt and itself, causally. Juravsky et al., "Hydragen: High-Throughput LLM
// Inference with Shared Prefixes", 2024. Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// (q_idx >= kv_idx) & ((kv_idx < prefix_length) | document(ids)). A token that belongs to no branch
// (padding) still sees the prefix.
MaskMod shared_prefix(std::int64_t prefix_length, const Table& ids) {
  const FloatEnv float_env;
  check_at_least("shared_prefix", "prefix_length", prefix_length, 0);
  return causal() & (attention_sink(prefix_length) | document(ids));
}

}  // namespace quire::mods
