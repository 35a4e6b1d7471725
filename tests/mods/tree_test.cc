// mods::tree against a walk from each token to its root, for trees of all shapes and orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::expect_mask;
using Parents = std::vector<std::int64_t>;

// Whether q sees kv, both absolute.
bool sees(const Parents& parents, std::int64_t context, std::int64_t q, std::int64_t kv) {
  if (q < context) return kv <= q;
  if (kv < context) return true;
  for (std::int64_t i = q - context; i >= 0; i = parents[static_cast<std::size_t>(i)])
    if (i == kv - context) return true;
  return false;
}

void expect_tree(const Parents& parents, std::int64_t context) {
  const std::int64_t length = context + static_cast<std::int64_t>(parents.size());
  expect_mask(mods::tree(parents, context), {2, 1, length, length},
              [&](auto, auto, auto q, auto kv) { return sees(parents, context, q, kv); });
}

// A forest whose parents come first, then, if asked, with its tokens shuffled.
Parents random_tree(int n, unsigned seed, bool shuffle) {
  std::mt19937 random(seed);
  Parents parents;
  for (int i = 0; i < n; ++i) parents.push_back(std::uniform_int_distribution(-1, i - 1)(random));
  if (!shuffle) return parents;
  Parents place(parents.size()), shuffled(parents.size());
  for (std::size_t i = 0; i < place.size(); ++i) place[i] = static_cast<std::int64_t>(i);
  std::shuffle(place.begin(), place.end(), random);
  for (std::size_t i = 0; i < place.size(); ++i)
    shuffled[static_cast<std::size_t>(place[i])] =
        parents[i] < 0 ? -1 : place[static_cast<std::size_t>(parents[i])];
  return shuffled;
}

TEST(Tree, ByHand) {
  // 0 and 5 are roots; 1 and 2 below 0, 3 below 1, 4 below 2.
  expect_tree({-1, 0, 0, 1, 2, -1}, 0);
  expect_tree({-1, 0, 0, 1, 2, -1}, 3);
  expect_tree({-1}, 0);
  expect_tree({-1}, 100);
}

TEST(Tree, ChainsStarsAndForests) {
  Parents chain, star, roots(70, -1);
  for (int i = 0; i < 70; ++i) {
    chain.push_back(i - 1);
    star.push_back(i == 0 ? -1 : 0);
  }
  for (const std::int64_t context : {0, 1, 61}) {
    expect_tree(chain, context);
    expect_tree(star, context);
    expect_tree(roots, context);
  }
}

TEST(Tree, RandomOnesInAnyOrder) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    expect_tree(random_tree(static_cast<int>(seed * 3 + 1), seed, false), seed % 7 * 9);
    expect_tree(random_tree(static_cast<int>(seed * 3 + 1), seed, true), seed % 7 * 9);
  }
}

TEST(Tree, OneTreeAndContextPerBatch) {
  const Parents first = random_tree(33, 1, false), second = random_tree(33, 2, true);
  Parents both = first;
  both.insert(both.end(), second.begin(), second.end());
  const std::vector<std::int32_t> contexts = {40, 7};
  const MaskMod mask = mods::tree(Tensor::from(both, {2, 33}), contexts);
  expect_mask(mask, {2, 2, 40, 40}, [&](auto b, auto, auto q, auto kv) {
    return b == 0 ? kv <= q : sees(second, 7, q, kv);
  });
  const MaskMod at_end = mods::tree(Tensor::from(both, {2, 33}), 7);
  expect_mask(at_end, {2, 1, 40, 40}, [&](auto b, auto, auto q, auto kv) {
    return sees(b == 0 ? first : second, 7, q, kv);
  });
}

TEST(Tree, OfNoTokensIsItsContext) {
  expect_mask(mods::tree(Parents(), 5), {1, 1, 5, 5},
              [](auto, auto, auto q, auto kv) { return kv <= q; });
}

TEST(Tree, Errors) {
  expect_error(ErrorKind::value, "[tree] parents[1] must be -1 or below 3; got 3", [] {
    mods::tree(Parents{-1, 3, 0});
  });
  expect_error(ErrorKind::value, "[tree] parents[0] must be -1 or below 1; got -2",
               [] { mods::tree(Parents{-2}); });
  expect_error(ErrorKind::value, "[tree] parents have a cycle; 1 of 4 tokens lead to a root", [] {
    mods::tree(Parents{-1, 3, 1, 2});
  });
  expect_error(ErrorKind::value, "[tree] parents have a cycle; 0 of 1 tokens lead to a root",
               [] { mods::tree(Parents{0}); });
  expect_error(ErrorKind::value, "[tree] context must be at least 0; got -1",
               [] { mods::tree(Parents{-1}, -1); });
  expect_error(ErrorKind::type, "[tree] parents must be integers; got f32",
               [] { mods::tree(std::vector<float>{-1}); });
  expect_error(ErrorKind::value, "[tree] parents must have the shape [n] or [batch, n]; got []",
               [] { mods::tree(Tensor(Shape(), DType::i32)); });
  expect_error(ErrorKind::value, "[tree] contexts must have the shape [batch]; got [1, 1]", [] {
    mods::tree(Parents{-1}, Tensor({1, 1}, DType::i32));
  });
  expect_error(ErrorKind::value, "[tree] parents is declared only and has no elements to read",
               [] { mods::tree(Buffer::declare(DType::i32, {3})); });
}

}  // namespace
}  // namespace quire
