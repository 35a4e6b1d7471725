// Index tensors of random masks (bits in a buffer, random formulas) against those that torch's way
// gives for the same mask written out; and read back by from_kv_blocks.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

#include "quire/block_mask.h"
#include "quire/evaluate.h"
#include "tests/support/random_formula.h"
#include "tests/support/torch_block_mask.h"

namespace quire {
namespace {

using testing::below;
using testing::chance;

constexpr BlockSize kBlockSizes[] = {1, 7, 16, 64, 128, {128, 64}};

// Runs of equal bits of many lengths, so that blocks of all kinds appear.
Buffer random_bits(std::mt19937_64& random, const Shape& shape) {
  Tensor bits(shape, DType::boolean);
  bool* data = bits.data_as<bool>();
  const std::int64_t longest = std::int64_t{1} << below(random, 15);
  for (std::int64_t at = 0; at < bits.numel();) {
    const std::int64_t end = std::min(at + 1 + below(random, longest), bits.numel());
    std::fill(data + at, data + end, chance(random, 60));
    at = end;
  }
  return Buffer(std::move(bits), {.name = "bits"});
}

struct Case {
  Shape shape;
  BlockSize block_size;
  bool separate_full_blocks;
};

Case random_case(std::mt19937_64& random) {
  const BlockSize size = kBlockSizes[below(random, std::size(kBlockSizes))];
  // A mask of single elements is sorted row by row by the test: keep it small.
  const std::int64_t longest = size.kv == 1 ? 60 : 300;
  return {{1 + below(random, 3), 1 + below(random, 3), 1 + below(random, longest),
           1 + below(random, longest)},
          size,
          chance(random, 70)};
}

void check(const MaskMod& mod, const Case& c) {
  const BlockMask mask = create_block_mask(
      mod, c.shape[0], c.shape[1], c.shape[2], c.shape[3],
      {.block_size = c.block_size, .separate_full_blocks = c.separate_full_blocks});
  const testing::TorchBlockMask torch =
      testing::torch_block_mask(evaluate(mod, c.shape), c.block_size, c.separate_full_blocks);
  RC_ASSERT(testing::difference(mask, torch) == "");

  FromKvBlocksOptions options{.block_size = c.block_size,
                              .mask_mod = mod,
                              .seq_lengths = std::pair{c.shape[2], c.shape[3]}};
  if (c.separate_full_blocks)
    options.full = BlockLists{*torch.full_kv_num_blocks, *torch.full_kv_indices};
  const BlockMask given =
      BlockMask::from_kv_blocks({torch.kv_num_blocks, torch.kv_indices}, options);
  RC_ASSERT(testing::difference(given, torch) == "");
}

RC_GTEST_PROP(IndexTensorsProperty, BitsInABuffer, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  const Case c = random_case(random);
  const Buffer bits = random_bits(random, c.shape);
  check([&](auto b, auto h, auto q_idx, auto kv_idx) { return bits(b, h, q_idx, kv_idx); }, c);
}

RC_GTEST_PROP(IndexTensorsProperty, RandomFormulas, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  const Case c = random_case(random);
  const testing::RandomFormula made =
      testing::random_formula(random, ValueType::kBool,
                              {.nodes = 1 + static_cast<int>(below(random, 15)),
                               .extents = {c.shape[0], c.shape[1], c.shape[2], c.shape[3]},
                               .score = false});
  check(MaskMod(made.formula), c);
}

}  // namespace
}  // namespace quire
