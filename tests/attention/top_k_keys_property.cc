// top_k_keys: the keys of the f64 reference where sums are told apart exactly, ties to the smaller
// key, any strides, masks and numbers of threads, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "quire/executor.h"
#include "quire/top_k_keys.h"
#include "reference/top_k.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/expect_error.h"
#include "tests/support/property.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

constexpr int kCases = 60;  // of each test; make check-all runs many more

// Small whole numbers: sums are exact in f32, and many are equal.
Tensor whole_numbers(const Shape& shape, DType dtype, std::mt19937_64& random) {
  Tensor made(shape, DType::f64);
  for (std::int64_t i = 0; i < made.numel(); ++i)
    made.data_as<double>()[i] = static_cast<double>(below(random, 5) - 2);
  return made.to(dtype);
}

TEST(TopKKeys, AreTheReferences) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
    const DType dtype = kTypes[below(random, 4)];
    const std::int64_t batch = 1 + below(random, 2), q_len = below(random, 140);
    const std::int64_t heads = chance(random, 10) ? 300 : 1 + below(random, 9);
    const std::int64_t keys = below(random, chance(random, 20) ? 6000 / heads : 300);
    const std::int64_t dims = 1 + below(random, 20), top_k = 1 + below(random, 70);
    const Tensor q = whole_numbers({batch, q_len, heads, dims}, dtype, random);
    const Tensor k = whole_numbers({chance(random, 30) ? 1 : batch, keys, dims}, dtype, random);
    const Tensor w = whole_numbers({batch, q_len, heads}, DType::f32, random);
    TopKKeysOptions options{.q_begin = below(random, 50)};
    if (chance(random, 60))
      options.mask_mod = random_mask_mod(random, {batch, 1, options.q_begin + q_len, keys},
                                         /*floats=*/false);
    // Columns that do not lie side by side.
    const Tensor turned = contiguous(q.view().permute({3, 1, 0, 2}));
    const Tensor found = top_k_keys(turned.view().permute({2, 1, 3, 0}), k, w, top_k, options);
    const Tensor sums = reference::index_sums({q, k, w}, options.mask_mod, options.q_begin);
    ASSERT_TRUE(same_bits(found, reference::top_k_of_sums(sums, top_k)));
  }
}

TEST(TopKKeys, OfRandomFloatsHaveTheLargestSums) {
  const Tensor q = random_tensor({1, 20, 8, 32}, DType::f32, 1);
  const Tensor k = random_tensor({1, 1500, 32}, DType::f32, 2);
  const Tensor w = random_tensor({1, 20, 8}, DType::f32, 3);
  const Tensor found = top_k_keys(q, k, w, 100);
  const Tensor sums = reference::index_sums({q, k, w});
  for (std::int64_t row = 0; row < 20; ++row) {
    const std::int32_t* const list = found.data_as<std::int32_t>() + row * 100;
    const double* const of = sums.data_as<double>() + row * 1500;
    double least = of[list[0]];
    for (int i = 0; i < 100; ++i) {
      if (i > 0) {
        EXPECT_LT(list[i - 1], list[i]);
      }
      least = std::min(least, of[list[i]]);
    }
    std::int64_t better = 0;
    for (std::int64_t key = 0; key < 1500; ++key) better += of[key] > least + 1e-4;
    EXPECT_LE(better, 100);
  }
}

TEST(TopKKeys, DoNotDependOnThreads) {
  const Tensor q = random_tensor({1, 3, 8, 32}, DType::f32, 1);
  const Tensor k = random_tensor({1, 20000, 32}, DType::f32, 2);
  const Tensor w = random_tensor({1, 3, 8}, DType::f32, 3);
  SerialExecutor alone;
  const auto many = make_thread_pool(5);
  const Tensor expected = top_k_keys(q, k, w, 300, {.executor = &alone});
  EXPECT_TRUE(same_bits(top_k_keys(q, k, w, 300, {.executor = many.get()}), expected));
}

TEST(TopKKeys, LeaveOutSumsThatAreNan) {
  Tensor k = random_tensor({1, 10, 4}, DType::f32, 2);
  k.at<float>({0, 3, 1}) = std::nanf("");
  const Tensor q = random_tensor({1, 1, 2, 4}, DType::f32, 1);
  const Tensor w = random_tensor({1, 1, 2}, DType::f32, 3);
  const Tensor found = top_k_keys(q, k, w, 10);
  const std::int32_t expected[] = {0, 1, 2, 4, 5, 6, 7, 8, 9, -1};
  EXPECT_TRUE(std::equal(expected, expected + 10, found.data_as<std::int32_t>()));
}

TEST(TopKKeys, WrongArgumentsAreNamed) {
  const Tensor q({1, 2, 3, 4}, DType::f32), k({1, 5, 4}, DType::f32), w({1, 2, 3}, DType::f32);
  const auto refuse = [](const std::string& text, const auto& call) {
    expect_error(ErrorKind::value, "[top_k_keys] " + text, call);
  };
  refuse("top_k must be in 1..2147483647; got 0", [&] { top_k_keys(q, k, w, 0); });
  refuse("weights must be [1, 2, 3], one for each query and head; got [1, 3, 2]", [&] {
    top_k_keys(q, k, Tensor({1, 3, 2}, DType::f32), 2);
  });
  refuse("k must be [batch, length, dim]; got [1, 2, 3, 4]", [&] { top_k_keys(q, q, w, 2); });
  refuse("query and key must have the same head dim; got 4 and 7", [&] {
    top_k_keys(q, Tensor({1, 5, 7}, DType::f32), w, 2);
  });
}

}  // namespace
}  // namespace quire::testing
