// A user's program: attention with a lambda as its mod, printed.
#include <quire/quire.h>

#include <cstdio>

int main() {
  using namespace quire;
  const Tensor q({1, 2, 8, 16}, DType::f32);
  Tensor v({1, 2, 8, 4}, DType::f32);
  for (int64_t i = 0; i < v.numel(); ++i) v.data_as<float>()[i] = static_cast<float>(i / 4 % 8);
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, 8, 8, {.block_size = 4});
  const ScoreMod twice = [](auto score, auto, auto, auto, auto) { return score * 2; };
  const Tensor out = flex_attention(q, q, v, {.score_mod = twice, .block_mask = mask});
  // Equal scores: a row is the mean of the values it sees.
  for (int64_t row = 0; row < 8; ++row)
    std::printf("%.1f%s", static_cast<double>(out.at<float>({0, 1, row, 3})), row < 7 ? " " : "\n");
  try {
    ScoreMod::parse("score +");
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
  }
}
