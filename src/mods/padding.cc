// Padding: in sequences padded to one length, every query sees the real keys only. The key padding
// mask of every encoder since Vaswani et al., "Attention Is All You Need", 2017. Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// kv_idx < kv_length
MaskMod padding(std::int64_t kv_length) {
  const FloatEnv float_env;
  check_at_least("padding", "kv_length", kv_length, 0);
  return [kv_length](auto, auto, auto, auto kv) { return kv < kv_length; };
}

// kv_idx < kv_lengths[b]
MaskMod padding(const Table& kv_lengths) {
  const FloatEnv float_env;
  const Buffer table = batch_table("padding", "kv_lengths", kv_lengths);
  return [&](auto b, auto, auto, auto kv) { return kv < of_batch(table, b); };
}

}  // namespace quire::mods
