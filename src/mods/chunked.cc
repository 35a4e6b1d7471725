// Chunked (local) attention: the sequence is divided into chunks that do not see each other. Local
// attention of Parmar et al., "Image Transformer", 2018; the local layers of Llama 4, 2025. Mods
// layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// (q_idx // size == kv_idx // size), and (q_idx >= kv_idx) if causal.
MaskMod chunked(std::int64_t size, bool is_causal) {
  const FloatEnv float_env;
  check_at_least("chunked", "size", size, 1);
  const MaskMod same_chunk = [size](auto, auto, auto q, auto kv) {
    return floor_div(q, size) == floor_div(kv, size);
  };
  return is_causal ? same_chunk & causal() : same_chunk;
}

}  // namespace quire::mods
