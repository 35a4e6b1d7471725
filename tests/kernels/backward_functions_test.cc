// The primitives of the backward kernel, one number at a time by their rules, by their bits, on the
// ISA that runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/backward/functions.h"
#include "kernels/backward/spoiled.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"
#include "kernels/typed_functions.h"
#include "tests/support/attention_rules.h"

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
        const auto rows = random_numbers<T>(static_cast<std::size_t>(160 * step), 2);
        auto got = random_numbers<T>(static_cast<std::size_t>(96 * step), 3), want = got;
        AddToKeysArgs<T> keys_args{.weights = weights.data(),
                                   .first_panel = (4 - panels) * (columns % 3),
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
        const ChainRun runs[] = {{0, 2, keys / 3}, {40, 50, keys - keys / 3}};
        AddToQueriesArgs<T> queries{.runs = keys < 3 ? runs + 1 : runs,
                                    .run_count = keys < 3 ? 1 : 2,
                                    .weights = weights.data(),
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

// The chain of a score: equal rows on either side give equal bits.
TYPED_TEST(BackwardFunctionsTest, DotsOfLanesAreScores) {
  using T = TypeParam;
  const auto rows = random_numbers<T>(150, 1);
  const auto columns = random_numbers<T>(150 * kQueryTile, 2);
  for (const int dims : {1, 2, 5, 16, 64, 65, 150}) {
    std::vector<T> same(150 * kQueryTile), got(48, T(7)), want(48, T(7)),
        scores(4 * kScorePanelStep);
    for (std::size_t i = 0; i < same.size(); ++i) same[i] = rows[i / kQueryTile];
    this->functions_.lane_dots({same.data(), columns.data(), dims, 2, got.data()});
    for (std::size_t lane = 0; lane < 32; ++lane) {
      want[lane] = rules::dot<T>(dims, 1, [&](int i, T acc) {
        const auto d = static_cast<std::size_t>(i);
        return std::fma(rows[d], columns[d * kQueryTile + lane], acc);
      });
    }
    expect_same(got, want, "dots");
    forward_functions<T>(current_table())
        .scores({.keys = rows.data(),
                 .key_step = 150,
                 .rows = 1,
                 .dims = dims,
                 .panels = 2,
                 .queries = columns.data(),
                 .scores = scores.data()});
    for (std::size_t lane = 0; lane < 32; ++lane)
      EXPECT_EQ(got[lane], scores[lane / 16 * kScorePanelStep + lane % 16]);
  }
}

TYPED_TEST(BackwardFunctionsTest, SumsOfLanes) {
  using T = TypeParam;
  auto gradients = random_numbers<T>(4 * kScorePanelStep, 1);
  auto factors = random_numbers<T>(37 * 80, 2);
  gradients[5 * kPanel + 3] = 0;
  factors[5 * 80 + 3] = std::nan("");
  gradients[6 * kPanel + 2] = 0;
  factors[6 * 80] = std::numeric_limits<T>::infinity();
  for (int panel = 0; panel < 4; ++panel)
    std::fill_n(gradients.data() + panel * kScorePanelStep + 6 * kPanel, kPanel, T(0));
  for (const int panels : {1, 3, 4}) {
    for (const int kind : {0, 1, 2}) {  // factors: none, of rows, of elements
      auto got = random_numbers<T>(64, 3), want = got;
      this->functions_.add_lane_sums({.block = {37, panels, 0, nullptr},
                                      .gradients = gradients.data(),
                                      .factors = kind == 0 ? nullptr : factors.data(),
                                      .factor_step = 80,
                                      .factor_per_row = kind == 1,
                                      .sums = got.data()});
      for (std::size_t lane = 0; lane < static_cast<std::size_t>(panels) * 16; ++lane) {
        for (std::size_t r = 0; r < 37; ++r) {
          const T x = gradients[lane / 16 * kScorePanelStep + r * kPanel + lane % 16];
          const T factor = kind == 0 ? T(1) : factors[r * 80 + (kind == 1 ? 0 : lane)];
          if (x != 0) want[lane] += x * factor;
        }
      }
      expect_same(got, want, "sums");
    }
  }
}

TYPED_TEST(BackwardFunctionsTest, RowsAreScaledWhereTheyAreAdded) {
  using T = TypeParam;
  const auto from = random_numbers<T>(3 * 48, 1);
  auto got = random_numbers<T>(3 * 40, 2), want = got;
  const T scale = static_cast<T>(0.3);
  this->functions_.add_rows({from.data(), 48, 3, 32, got.data(), 40, scale});
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < 32; ++c)
      want[r * 40 + c] = std::fma(from[r * 48 + c], scale, want[r * 40 + c]);
  expect_same(got, want, "rows");
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
    this->functions_.score_gradients({.block = {37, 3, 16, masked ? words.data() : nullptr},
                                      .gradients = got.data(),
                                      .weights = weights.data(),
                                      .delta = delta.data()});
    for (int lane = 0; lane < 48; ++lane) {
      for (int r = 0; r < 37; ++r) {
        const auto at =
            static_cast<std::size_t>(lane / 16 * kScorePanelStep + r * kPanel + lane % 16);
        const bool visible = !masked || (words[static_cast<std::size_t>(r)] >> (16 + lane) & 1);
        want[at] =
            visible ? weights[at] * (want[at] - delta[static_cast<std::size_t>(lane)]) : T(0);
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
                                 .uniform = 9});
  EXPECT_EQ(gradients[3], 10);
  EXPECT_EQ(gradients[4], 0);
  this->functions_.apply_slopes(
      {.block = {2, 1, 0, nullptr}, .gradients = gradients.data(), .uniform = T(0.5)});
  EXPECT_EQ(gradients[3], 5);
}

TYPED_TEST(BackwardFunctionsTest, WeightsAndFiniteness) {
  using T = TypeParam;
  std::vector<T> scores(kScorePanelStep, T(3)), lse(16, T(3));
  lse[5] = std::numeric_limits<T>::infinity();
  const std::uint64_t words[] = {~std::uint64_t{4}};
  scores[2] = std::nan("");
  this->functions_.weights({.block = {1, 1, 0, words}, .scores = scores.data(), .lse = lse.data()});
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
