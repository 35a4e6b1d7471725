// ALiBi: a penalty proportional to the distance, with a slope per head. Press, Smith and Lewis,
// "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation", 2021.
// Mods layer.
#include <bit>
#include <cmath>

#include "mods/arguments.h"
#include "quire/mods.h"
#include "runtime/check_size.h"
#include "runtime/float_env.h"

namespace quire::mods {
namespace {

// More than any model has; limits the table of slopes made here.
constexpr std::int64_t kMostHeads = 1 << 20;

// Slope i (from 1) of a power of two of heads: 2^(-8 i / heads).
float slope(std::int64_t i, std::int64_t heads) {
  return static_cast<float>(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(heads)));
}

}  // namespace

std::vector<float> alibi_slopes(std::int64_t heads) {
  const FloatEnv float_env;
  check_at_least("alibi_slopes", "heads", heads, 1);
  check_size("alibi_slopes", "heads", heads, 1, kMostHeads);
  const std::int64_t power = std::bit_floor(static_cast<std::uint64_t>(heads));
  std::vector<float> slopes;
  slopes.reserve(heads);
  for (std::int64_t i = 1; i <= power; ++i) slopes.push_back(slope(i, power));
  for (std::int64_t i = 1; power + (i + 1) / 2 <= heads; i += 2)
    slopes.push_back(slope(i, 2 * power));
  return slopes;
}

// score + slopes[h] * (kv_idx - q_idx). Meant for use with a causal mask: the scores of keys after
// the query would be raised.
ScoreMod alibi(const Table& slopes) {
  const FloatEnv float_env;
  const Buffer table = float_table("alibi", "slopes", slopes);
  check_rank("alibi", table, 1, 1, "[heads]");
  return [&](auto score, auto, auto h, auto q, auto kv) { return score + table[h] * (kv - q); };
}

ScoreMod alibi(std::int64_t heads) {
  const FloatEnv float_env;
  check_at_least("alibi", "heads", heads, 1);
  return alibi(Table(alibi_slopes(heads)));
}

}  // namespace quire::mods
