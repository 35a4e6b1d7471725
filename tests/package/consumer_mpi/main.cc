// Attention over a sequence that two ranks hold; each row sees the keys up to its own, so that row
// i of the output is the mean of 0 .. i. Rank 0 prints the first and the last.
#include <quire/mpi_communicator.h>
#include <quire/quire.h>

#include <cstdio>

int main(int argc, char** argv) {
  using namespace quire;
  const MpiSession session(&argc, &argv);
  const auto group = make_mpi_communicator({.timeout_seconds = 60});
  constexpr std::int64_t kLength = 3000;
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, kLength, kLength);
  const auto shards = context_parallel::plan_shards(mask, group->size());
  const auto positions = shards.positions(group->rank());
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const Tensor zeros({1, 1, tokens, 4}, DType::f32);
  Tensor values({1, 1, tokens, 1}, DType::f32);
  for (std::int64_t i = 0; i < tokens; ++i)
    values.data_as<float>()[i] = static_cast<float>(positions[static_cast<std::size_t>(i)]);
  const auto mine =
      context_parallel::flex_attention(zeros, zeros, values, shards, *group, {.block_mask = mask});
  const Tensor whole = context_parallel::unshard(mine.out, shards, *group);
  if (group->rank() == 0)
    std::printf("%d ranks: %.1f %.1f\n", group->size(), whole.data_as<float>()[0],
                whole.data_as<float>()[kLength - 1]);
}
