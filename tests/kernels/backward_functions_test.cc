// The primitives of the backward kernel, one number at a time by their rules, by their bits, on the
// ISA that runs.
#include "kernels/backward_functions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/backward_spoiled.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

template <class T>
std::vector<T> random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(static_cast<double>(random()) * 0x1p-31 - 1);
  return values;
}

template <class T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0) << what;
}

template <class T>
class BackwardFunctionsTest : public ::testing::Test {
 protected:
  const BackwardFunctions<T>& functions_ = backward_functions<T>(current_table());
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(BackwardFunctionsTest, Types);

TYPED_TEST(BackwardFunctionsTest, SumsOfKeysAndQueries) {
  using T = TypeParam;
  for (const int columns : {16, 48, 64, 80, 144}) {
    for (const int keys : {1, 2, 5, 16, 37, 96}) {
      for (const int panels : {1, 3, 4}) {
        const ptrdiff_t step = columns + 16;
        const auto weights = random_numbers<T>(4 * kScorePanelStep, 1);
        const auto rows = random_numbers<T>(static_cast<std::size_t>(96 * step), 2);
        auto got = random_numbers<T>(static_cast<std::size_t>(96 * step), 3), want = got;
        AddToKeysArgs<T> keys_args{.weights = weights.data(),
                                   .keys = keys,
                                   .panels = panels,
                                   .columns = columns,
                                   .rows = rows.data(),
                                   .row_step = step,
                                   .out = got.data(),
                                   .out_step = step};
        this->functions_.add_to_keys(keys_args);
        keys_args.out = want.data();
        add_to_keys_weighted(keys_args);
        expect_same(got, want, "keys");
        AddToQueriesArgs<T> queries{.weights = weights.data(),
                                    .keys = keys,
                                    .queries = 4 * panels,
                                    .columns = columns,
                                    .rows = rows.data(),
                                    .row_step = step,
                                    .out = got.data(),
                                    .out_step = step};
        this->functions_.add_to_queries(queries);
        queries.out = want.data();
        add_to_queries_weighted(queries);
        expect_same(got, want, "queries");
      }
    }
  }
}

TYPED_TEST(BackwardFunctionsTest, RowDots) {
  using T = TypeParam;
  const auto a = random_numbers<T>(7 * 96, 1), b = random_numbers<T>(7 * 96, 2);
  std::vector<T> got(7), want(7);
  for (const int columns : {16, 48, 80}) {
    this->functions_.row_dots({a.data(), b.data(), 96, 7, columns, got.data()});
    for (int r = 0; r < 7; ++r) {
      T sums[16] = {};
      for (int c = 0; c < columns; ++c) {
        const auto at = static_cast<std::size_t>(r * 96 + c);
        sums[c % 16] = std::fma(a[at], b[at], sums[c % 16]);
      }
      for (int half = 8; half != 0; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
      want[static_cast<std::size_t>(r)] = sums[0];
    }
    expect_same(got, want, "dots");
  }
}

TYPED_TEST(BackwardFunctionsTest, GradientsOfScores) {
  using T = TypeParam;
  const auto weights = random_numbers<T>(4 * kScorePanelStep, 1);
  const auto delta = random_numbers<T>(64, 2);
  const auto before = random_numbers<T>(4 * kScorePanelStep, 3);
  std::vector<std::uint64_t> words(40);
  std::mt19937_64 random(4);
  for (std::uint64_t& word : words) word = random();
  for (const bool masked : {false, true}) {
    auto got = before, want = before;
    const T scale = static_cast<T>(0.3);
    this->functions_.score_gradients({.block = {37, 3, 16, masked ? words.data() : nullptr},
                                      .gradients = got.data(),
                                      .weights = weights.data(),
                                      .scale = scale,
                                      .delta = delta.data()});
    for (int lane = 0; lane < 48; ++lane) {
      for (int r = 0; r < 37; ++r) {
        const auto at =
            static_cast<std::size_t>(lane / 16 * kScorePanelStep + r * kPanel + lane % 16);
        const bool visible = !masked || (words[static_cast<std::size_t>(r)] >> (16 + lane) & 1);
        want[at] = visible ? weights[at] *
                                 std::fma(want[at], scale, -delta[static_cast<std::size_t>(lane)])
                           : T(0);
      }
    }
    expect_same(got, want, "gradients");
  }
}

TYPED_TEST(BackwardFunctionsTest, SlopesOfWhatIsHiddenDoNotMatter) {
  using T = TypeParam;
  std::vector<T> gradients(kScorePanelStep, T(0)), slopes(kScorePanelStep, std::nan(""));
  gradients[3] = 2;
  slopes[3] = 5;
  this->functions_.apply_slopes({.block = {2, 1, 0, nullptr},
                                 .gradients = gradients.data(),
                                 .slopes = slopes.data(),
                                 .scale = static_cast<T>(0.5)});
  EXPECT_EQ(gradients[3], 5);
  EXPECT_EQ(gradients[4], 0);
}

TYPED_TEST(BackwardFunctionsTest, WeightsAndFiniteness) {
  using T = TypeParam;
  std::vector<T> scores(kScorePanelStep, T(3)), lse(16, T(3));
  lse[5] = std::numeric_limits<T>::infinity();
  const std::uint64_t words[] = {~std::uint64_t{4}};
  scores[2] = std::nan("");
  this->functions_.weights({.block = {1, 1, 0, words},
                            .scores = scores.data(),
                            .natural = true,
                            .scale = 1,
                            .lse = lse.data()});
  EXPECT_EQ(scores[0], 1);
  EXPECT_EQ(scores[2], 0);  // hidden
  EXPECT_EQ(scores[5], 0);  // no query
  std::vector<T> row(32, T(1));
  EXPECT_TRUE(this->functions_.is_finite(row.data(), 32));
  row[17] = std::numeric_limits<T>::infinity();
  EXPECT_FALSE(this->functions_.is_finite(row.data(), 32));
  EXPECT_TRUE(this->functions_.is_finite(row.data(), 16));
}

}  // namespace
}  // namespace quire::kernels
