// A bias for each pair of positions, as computed elsewhere: the pair bias of Jumper et al.,
// "AlphaFold", 2021; the attn_mask of floats that scaled_dot_product_attention takes. Mods layer.
#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {

// score + bias[q_idx, kv_idx], bias[h, q_idx, kv_idx] or bias[b, h, q_idx, kv_idx]
ScoreMod bias_2d(const Table& bias) {
  const FloatEnv float_env;
  const Buffer table = float_table("bias_2d", "bias", bias);
  check_rank("bias_2d", table, 2, 4,
             "[q_len, kv_len], [heads, q_len, kv_len] or [batch, heads, q_len, kv_len]");
  const std::size_t rank = table.shape().rank();
  return [&](auto score, auto b, auto h, auto q, auto kv) {
    if (rank == 2) return score + table(q, kv);
    if (rank == 3) return score + table(or_only(h, table, 0), q, kv);
    return score + table(or_only(b, table, 0), or_only(h, table, 1), q, kv);
  };
}

}  // namespace quire::mods
