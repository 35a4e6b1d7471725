// Products of bf16 pairs, where the ISA has them: pairs are brought together and rounded exactly,
// and a step of a product is two fused multiply-adds in f32, the odd elements first. ctest runs
// this once per ISA.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quire/float16.h"
#include "tests/support/forward_functions.h"

namespace quire {
namespace {

using namespace kernels;

class PairFunctionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (current_table().pairs == nullptr) GTEST_SKIP() << "no bf16 products on this ISA";
  }
  const PairFunctions& functions() { return *current_table().pairs; }

  std::vector<BFloat16> random_elements(size_t n) {
    std::uniform_real_distribution<float> distribution(-2, 2);
    std::vector<BFloat16> result(n);
    for (BFloat16& x : result) x = BFloat16(distribution(generator()));
    return result;
  }
  std::vector<uint32_t> random_pairs(size_t n) {
    std::vector<uint32_t> result(n);
    const auto elements = random_elements(2 * n);
    for (size_t i = 0; i < n; ++i) result[i] = pair(elements[2 * i], elements[2 * i + 1]);
    return result;
  }
  static uint32_t pair(BFloat16 even, BFloat16 odd) {
    return even.bits | static_cast<uint32_t>(odd.bits) << 16;
  }
  static float even(uint32_t x) { return BFloat16::from_bits(static_cast<uint16_t>(x)); }
  static float odd(uint32_t x) { return BFloat16::from_bits(static_cast<uint16_t>(x >> 16)); }
  // vdpbf16ps: both are fused multiply-adds, the odd elements first.
  static float step(uint32_t a, uint32_t b, float acc) {
    return std::fma(even(a), even(b), std::fma(odd(a), odd(b), acc));
  }
};

TEST_F(PairFunctionsTest, QueriesAndKeysPairAlongColumns) {
  for (int i = 0; i < 80; ++i) {
    const int rows = random_int(1, 64), columns = random_int(1, 300);
    const int panels = (rows + kPanel - 1) / kPanel, pairs = (columns + 1) / 2;
    const ptrdiff_t column_step = i % 3 == 0 ? 2 : 1, row_step = columns * column_step + i % 2;
    const auto from = random_elements((rows - 1) * row_step + (columns - 1) * column_step + 1);
    const RowsView view{from.data(), DType::bf16, row_step, column_step, rows, columns};
    const auto expected_pair = [&](int row, int p) {
      const auto element = [&](int c) {
        return c < columns ? from[row * row_step + c * column_step] : BFloat16();
      };
      return pair(element(2 * p), element(2 * p + 1));
    };
    std::vector<uint32_t> queries((pairs - 1) * kQueryTile + panels * kPanel, 99);
    auto expected = queries;
    for (int p = 0; p < pairs; ++p)
      for (int lane = 0; lane < panels * kPanel; ++lane)
        expected[p * kQueryTile + lane] = lane < rows ? expected_pair(lane, p) : 0;
    functions().load_queries(view, panels, queries.data());
    EXPECT_EQ(queries, expected);

    const ptrdiff_t step = pairs + random_int(0, 2);
    std::vector<uint32_t> keys((rows - 1) * step + pairs, 99);
    expected = keys;
    for (int r = 0; r < rows; ++r)
      for (int p = 0; p < pairs; ++p) expected[r * step + p] = expected_pair(r, p);
    functions().copy_rows(view, keys.data(), step);
    EXPECT_EQ(keys, expected);
  }
}

TEST_F(PairFunctionsTest, ValuesPairAlongRows) {
  for (int i = 0; i < 80; ++i) {
    const int rows = random_int(1, 40), columns = random_int(1, 100);
    const int out_columns = (columns + 15) / 16 * 16, pairs = (rows + 1) / 2;
    const ptrdiff_t column_step = i % 3 == 0 ? 2 : 1, row_step = columns * column_step + i % 2;
    const ptrdiff_t step = out_columns + random_int(0, 2);
    const auto from = random_elements((rows - 1) * row_step + (columns - 1) * column_step + 1);
    std::vector<uint32_t> got((pairs - 1) * step + out_columns, 99), expected = got;
    const auto element = [&](int r, int c) {
      return r < rows && c < columns ? from[r * row_step + c * column_step] : BFloat16();
    };
    for (int p = 0; p < pairs; ++p)
      for (int c = 0; c < out_columns; ++c)
        expected[p * step + c] = pair(element(2 * p, c), element(2 * p + 1, c));
    functions().pair_values({from.data(), DType::bf16, row_step, column_step, rows, columns},
                            got.data(), step, out_columns);
    EXPECT_EQ(got, expected);
  }
}

TEST_F(PairFunctionsTest, WeightsAreRoundedToNearestEven) {
  for (int keys = 1; keys <= 40; ++keys) {
    std::vector<float> weights(keys * kPanel);
    for (float& w : weights)
      w = random_int(0, 5) == 0
              ? 0.f
              : std::ldexp(static_cast<float>(random_int(1, 1 << 10)) / 1024.f, -random_int(0, 50));
    std::vector<uint32_t> expected((keys + 1) / 2 * kPanel), got(expected.size());
    for (int p = 0; p < (keys + 1) / 2; ++p)
      for (int q = 0; q < kPanel; ++q)
        expected[p * kPanel + q] =
            pair(BFloat16(weights[2 * p * kPanel + q]),
                 2 * p + 1 < keys ? BFloat16(weights[(2 * p + 1) * kPanel + q]) : BFloat16());
    functions().pair_weights(weights.data(), keys);
    std::memcpy(got.data(), weights.data(), got.size() * sizeof(uint32_t));
    EXPECT_EQ(got, expected);
  }
}

TEST_F(PairFunctionsTest, Scores) {
  for (int i = 0; i < 80; ++i) {
    const int rows = random_int(1, i % 8 == 0 ? 256 : 40), pairs = random_int(1, 70);
    const int panels = random_int(1, kQueryPanels);
    const ptrdiff_t key_step = pairs + random_int(0, 3);
    const auto keys = random_pairs((rows - 1) * key_step + pairs);
    const auto queries = random_pairs((pairs - 1) * kQueryTile + panels * kPanel);
    std::vector<float> got((panels - 1) * kScorePanelStep + rows * kPanel, 77.f), expected = got;
    std::vector<float> max(panels * kPanel, rules::kNone<float>), expected_max = max;
    for (int r = 0; r < rows; ++r) {
      for (int lane = 0; lane < panels * kPanel; ++lane) {
        const float s = rules::dot<float>(pairs, 2, [&](int p, float acc) {
          return step(keys[r * key_step + p], queries[p * kQueryTile + lane], acc);
        });
        expected[lane / kPanel * kScorePanelStep + r * kPanel + lane % kPanel] = s;
        expected_max[lane] = rules::raise(expected_max[lane], s);
      }
    }
    functions().scores({.keys = keys.data(),
                        .key_step = key_step,
                        .rows = rows,
                        .dims = pairs,
                        .panels = panels,
                        .queries = queries.data(),
                        .scores = got.data(),
                        .max = max.data()});
    EXPECT_TRUE(rules::same_bits(got.data(), expected.data(), got.size())) << rows << " " << pairs;
    EXPECT_TRUE(rules::same_bits(max.data(), expected_max.data(), max.size()));
  }
}

TEST_F(PairFunctionsTest, Outputs) {
  for (int i = 0; i < 80; ++i) {
    const int pairs = random_int(1, 40), queries = random_int(1, kPanel);
    const int columns = 16 * random_int(1, 9);
    const ptrdiff_t value_step = columns + random_int(0, 3), out_step = columns;
    const auto weights = random_pairs((pairs - 1) * kPanel + queries);
    const auto values = random_pairs((pairs - 1) * value_step + columns);
    std::vector<float> got(queries * out_step, 0.75f), factor(queries, 0.3f), expected = got;
    for (int q = 0; q < queries; ++q) {
      for (int c = 0; c < columns; ++c) {
        float chain = 0;
        for (int p = 0; p < pairs; ++p)
          chain = step(weights[p * kPanel + q], values[p * value_step + c], chain);
        expected[q * out_step + c] = i % 2 == 0 ? chain : 0.75f * 0.3f + chain;
      }
    }
    const ChainRun run{0, 0, pairs};
    functions().accumulate({.runs = &run,
                            .run_count = 1,
                            .weights = weights.data(),
                            .values = values.data(),
                            .value_step = value_step,
                            .queries = queries,
                            .columns = columns,
                            .out = got.data(),
                            .out_step = out_step,
                            .factor = i % 2 == 0 ? nullptr : factor.data()});
    EXPECT_TRUE(rules::same_bits(got.data(), expected.data(), got.size())) << queries;
  }
}

}  // namespace
}  // namespace quire
