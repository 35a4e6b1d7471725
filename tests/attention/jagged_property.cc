// Jagged = each sequence alone, bit for bit: any lengths, orders in memory, holes, mods that ask
// for b, threads, permutations and groupings of sequences.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/jagged_case.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

std::int64_t random_length(std::mt19937_64& random, std::int64_t longest) {
  switch (below(random, 6)) {
    case 0:
      return 0;
    case 1:
      return 1 + below(random, 3);
    case 2:
      return 1 + below(random, 30);
    default:
      return below(random, longest + 1);
  }
}

void random_mods(std::mt19937_64& random, JaggedCase& c) {
  const auto longest = [](const std::vector<std::int64_t>& lengths) {
    return std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  };
  const Extents extents{static_cast<std::int64_t>(c.q_lengths.size()), c.q_heads,
                        longest(c.q_lengths), longest(c.kv_lengths)};
  switch (below(random, 6)) {
    case 0:
      c.score_mod = mods::alibi(c.q_heads);
      break;
    case 1:
      c.score_mod = ScoreMod::parse("score * 0.5 + (b * 3 - h) * 0.25");
      break;
    case 2:
      c.score_mod = ScoreMod::parse("where((q_idx + kv_idx + b) % 4 == 0, -inf, score)");
      break;
    default:
      break;
  }
  switch (below(random, 5)) {
    case 0:
      c.mask_mod = mods::causal();
      break;
    case 1:
      c.mask_mod = MaskMod::parse("(q_idx >= kv_idx) & (q_idx - kv_idx < 20 * b + 3)");
      break;
    case 2:
    case 3:
      c.mask_mod = random_mask_mod(random, extents);
      break;
    default:
      break;
  }
  c.asks_for_b = true;
}

JaggedCase random_case(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  const std::int64_t longest = kernels_are_slow() ? 90 : 300;
  JaggedCase c;
  const std::int64_t count = 1 + below(random, 7);
  const bool same = chance(random, 40);
  for (std::int64_t i = 0; i < count; ++i) {
    c.q_lengths.push_back(random_length(random, longest));
    c.kv_lengths.push_back(same ? c.q_lengths.back() : random_length(random, longest));
  }
  c.kv_heads = 1 + below(random, 2);
  c.q_heads = c.kv_heads * (1 + below(random, 3));
  c.head_dim = 1 + below(random, 40);
  c.v_head_dim = 1 + below(random, 40);
  c.dtype = kTypes[below(random, 5)];
  c.q_order = static_cast<JaggedOrder>(below(random, 2));
  c.k_order = static_cast<JaggedOrder>(below(random, 2));
  c.v_order = static_cast<JaggedOrder>(below(random, 2));
  c.q_holes = chance(random, 40);
  c.kv_holes = chance(random, 40);
  c.wide_rows = chance(random, 20);
  c.i32 = chance(random, 50);
  random_mods(random, c);
  return c;
}

RC_GTEST_PROP(Jagged, IsEachSequenceAlone, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const JaggedCase c = random_case(random);
  RC_LOG() << c.to_string() << std::endl;
  const JaggedTensors t(c, seed);
  constexpr int kThreads[] = {1, 2, 7};
  static const std::shared_ptr<Executor> executors[] = {make_thread_pool(1), make_thread_pool(2),
                                                        make_thread_pool(7)};
  const std::int64_t which = below(random, std::size(kThreads));
  const JaggedResult all = run_jagged(c, t, executors[which].get());
  RC_ASSERT(first_different(all, c, t) == -1);
}

// Rows of `values` in another order of sequences, as a batch of its own without holes.
JaggedValues regrouped(const JaggedValues& from, const std::vector<std::int64_t>& order) {
  const bool by_token = from.jagged.order == JaggedOrder::kTokens;
  const Tensor values = contiguous(from.jagged.values);
  JaggedValues made;
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t i : order) {
    made.length.push_back(from.length[static_cast<std::size_t>(i)]);
    offsets.push_back(offsets.back() + made.length.back());
  }
  made.begin = offsets;
  made.begin.pop_back();
  const std::int64_t heads = values.dim(by_token ? 1 : 0), dim = values.dim(2);
  const std::int64_t total = offsets.back();
  Tensor numbers(by_token ? Shape{total, heads, dim} : Shape{heads, total, dim}, DType::f64);
  for (std::size_t j = 0; j < order.size(); ++j)
    for (std::int64_t row = 0; row < made.length[j]; ++row)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t to = made.begin[j] + row;
          const std::int64_t at = from.begin[static_cast<std::size_t>(order[j])] + row;
          numbers.at<double>({by_token ? to : h, by_token ? h : to, d}) =
              values.view().load_float({by_token ? at : h, by_token ? h : at, d});
        }
  made.memory = numbers.to(values.dtype());
  made.offsets = Tensor::from(offsets);
  made.jagged = {.values = std::as_const(made.memory).view(),
                 .offsets = made.offsets,
                 .order = from.jagged.order};
  return made;
}

RC_GTEST_PROP(Jagged, DoesNotDependOnOrderOrGrouping, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  JaggedCase c = random_case(random);
  c.score_mod.reset();
  c.mask_mod.reset();
  if (chance(random, 50)) c.mask_mod = mods::sliding_window(40);
  if (chance(random, 50)) c.score_mod = mods::softcap(3);
  RC_LOG() << c.to_string() << std::endl;
  const JaggedTensors t(c, seed);
  const JaggedResult all = run_jagged(c, t);
  std::vector<std::int64_t> order(c.q_lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  order.resize(
      static_cast<std::size_t>(1 + below(random, static_cast<std::int64_t>(order.size()))));
  JaggedTensors some = t;
  some.q = regrouped(t.q, order);
  some.k = regrouped(t.k, order);
  some.v = regrouped(t.v, order);
  const JaggedResult part = run_jagged(c, some);
  for (std::size_t j = 0; j < order.size(); ++j) {
    RC_ASSERT(same_bits(part_of(part, c, some, static_cast<std::int64_t>(j)),
                        part_of(all, c, t, order[j])));
  }
}

RC_GTEST_PROP(Jagged, MasksAreThoseOfEachSequence, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  JaggedCase c = random_case(random);
  if (!c.mask_mod) c.mask_mod = MaskMod::parse("q_idx + b >= kv_idx + h");
  RC_LOG() << c.to_string() << std::endl;
  const JaggedTensors t(c, seed);
  constexpr BlockSize kSizes[] = {128, 16, {7, 30}, {64, 1}};
  const BlockMaskOptions options{.block_size = kSizes[below(random, 4)]};
  const JaggedBlockMask mask =
      create_jagged_block_mask(*c.mask_mod, c.q_heads, t.q.jagged, t.k.jagged, options);
  RC_ASSERT(mask.sequences() == static_cast<std::int64_t>(c.q_lengths.size()));
  for (std::int64_t i = 0; i < mask.sequences(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    // The mask of b = i of a batch; and that of its own rule.
    const BlockMask batch = create_block_mask(*c.mask_mod, i + 1, c.q_heads, c.q_lengths[at],
                                              c.kv_lengths[at], options);
    const BlockMask own = create_block_mask(mask[i].mask_mod(), 1, c.q_heads, c.q_lengths[at],
                                            c.kv_lengths[at], options);
    RC_ASSERT(mask[i].same_blocks(own));
    for (std::int64_t h = 0; h < c.q_heads; ++h)
      for (std::int64_t row = 0; row < batch.q_blocks(); ++row)
        RC_ASSERT(std::ranges::equal(mask[i].runs(0, h, row), batch.runs(i, h, row)));
  }
}

}  // namespace
}  // namespace quire::testing
