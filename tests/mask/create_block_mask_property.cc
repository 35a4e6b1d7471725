// Block masks of random rules against a dense evaluation: building, taking rows, appending rows and
// combining, for random sizes and blocks.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <random>

#include "tests/mask/expect_blocks.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kLongest = 150;  // 1,000 in the test of long masks; here many cases count

#define QUIRE_ASSERT_BLOCKS(mask, dense)                           \
  do {                                                             \
    const auto difference = first_difference((mask), (dense));     \
    if (difference.has_value()) RC_FAIL(#mask ": " + *difference); \
  } while (false)

RC_GTEST_PROP(CreateBlockMask, EqualsTheDenseMask, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const RandomMask made = random_mask(random, kLongest);
  RC_LOG() << made.mod.to_string() << std::endl;
  QUIRE_ASSERT_BLOCKS(made.build(), made.dense());
}

RC_GTEST_PROP(CreateBlockMask, DoesNotDependOnTheExecutor, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const RandomMask made = random_mask(random, kLongest);
  SerialExecutor serial;
  const BlockMask alone = create_block_mask(
      made.mod, made.batch, made.heads, made.q_len, made.kv_len,
      {.block_size = made.block_size, .q_begin = made.q_begin, .executor = &serial});
  RC_ASSERT(alone == made.build());
}

RC_GTEST_PROP(BlockMaskRows, EqualsAMaskOfTheseRows, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const RandomMask made = random_mask(random, kLongest);
  const BlockMask whole = made.build();
  const std::int64_t begin = below(random, made.q_len + 1);
  const std::int64_t end = begin + below(random, made.q_len - begin + 1);
  RC_LOG() << made.mod.to_string() << " rows " << begin << ".." << end << std::endl;
  const BlockMask part = whole.rows(begin, end);
  RC_ASSERT(part == made.build(begin, end - begin));
  RC_ASSERT(part.q_begin() == made.q_begin + begin);
}

RC_GTEST_PROP(BlockMaskAppend, EqualsAMaskBuiltAtOnce, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const RandomMask made = random_mask(random, kLongest);
  RC_LOG() << made.mod.to_string() << std::endl;
  std::int64_t q = below(random, made.q_len + 1), kv = below(random, made.kv_len + 1);
  BlockMask mask = create_block_mask(made.mod, made.batch, made.heads, q, kv,
                                     {.block_size = made.block_size, .q_begin = made.q_begin});
  while (q < made.q_len || kv < made.kv_len) {
    const std::int64_t more_q = below(random, made.q_len - q + 1);
    const std::int64_t more_kv = below(random, made.kv_len - kv + 1);
    mask.append_rows(more_q, more_kv);
    q += more_q;
    kv += more_kv;
  }
  RC_ASSERT(mask == made.build());
}

RC_GTEST_PROP(BlockMaskCombine, EqualsTheMaskOfTheCombinedRule, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  RandomMask a = random_mask(random, kLongest);
  RandomMask b = a;
  b.mod = random_mask_mod(random, {a.batch, a.heads, a.q_begin + a.q_len, a.kv_len});
  RC_LOG() << a.mod.to_string() << "\n" << b.mod.to_string() << std::endl;
  const BlockMask left = a.build(), right = b.build();
  RandomMask both = a, either = a, neither = a;
  both.mod = a.mod & b.mod;
  either.mod = a.mod | b.mod;
  neither.mod = ~a.mod;
  RC_ASSERT((left & right) == both.build());
  RC_ASSERT((left | right) == either.build());
  RC_ASSERT(~left == neither.build());
  RC_ASSERT((~~left).same_blocks(left));
}

}  // namespace
}  // namespace quire::testing
