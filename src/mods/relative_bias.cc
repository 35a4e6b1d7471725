// Relative bias: a number for each distance, per head. Shaw et al., "Self-Attention with Relative
// Position Representations", 2018 (distances are clipped); Raffel et al., T5, 2019 (a scalar added
// to the score). Mods layer.
#include "mods/arguments.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::mods {

// score + table[h, clamp(kv_idx - q_idx + max - 1, 0, 2 * max - 2)]
ScoreMod relative_bias(const Table& table) {
  const FloatEnv float_env;
  constexpr std::string_view kShapes = "[2 * max - 1] or [heads, 2 * max - 1]";
  const Buffer biases = float_table("relative_bias", "table", table);
  check_rank("relative_bias", biases, 1, 2, kShapes);
  const std::size_t rank = biases.shape().rank();
  const std::int64_t count = biases.shape()[rank - 1];
  if (count % 2 == 0)
    fail(ErrorKind::value, "relative_bias",
         "{} must have the shape {}, an odd number of distances; got {}", biases.name(), kShapes,
         to_string(biases.shape()));
  return [&](auto score, auto, auto h, auto q, auto kv) {
    const auto place = clamp(kv - q + count / 2, 0, count - 1);
    return score + (rank == 1 ? biases[place] : biases(or_only(h, biases, 0), place));
  };
}

}  // namespace quire::mods
