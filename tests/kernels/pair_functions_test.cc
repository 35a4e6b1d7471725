// Products of bf16 pairs, where the ISA has them: pairs are brought together and rounded exactly,
// and a step of a product is what tests/support/pair_product.h says: one pair, or, of tile
// registers,
// 16. ctest runs this once per ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quire/float16.h"
#include "tests/support/forward_functions.h"
#include "tests/support/pair_product.h"

namespace quire {
namespace {

using namespace kernels;

class PairFunctionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (current_table().pairs == nullptr) GTEST_SKIP() << "no bf16 products on this ISA";
    if (tiles() != nullptr) functions().begin();
  }
  void TearDown() override {
    if (current_table().pairs != nullptr && tiles() != nullptr) functions().end();
  }
  const PairTiles* tiles() { return functions().tiles; }
  // Rows of pairs are filled up with zeros to whole steps.
  int whole_steps(int pairs) {
    const int step = functions().step;
    return (pairs + step - 1) / step * step;
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
  // The products of `pairs` pairs, by either rule.
  template <class A, class B>
  float sum_of(int pairs, const A& a, const B& b) {
    if (tiles() == nullptr) {
      return rules::dot<float>(pairs, 2, [&](int p, float acc) { return step(a(p), b(p), acc); });
    }
    float sum = 0;
    for (int first = 0; first < pairs; first += 16) {
      float x[32] = {}, y[32] = {};
      for (int p = first; p < std::min(pairs, first + 16); ++p) {
        x[2 * (p - first)] = even(a(p)), x[2 * (p - first) + 1] = odd(a(p));
        y[2 * (p - first)] = even(b(p)), y[2 * (p - first) + 1] = odd(b(p));
      }
      sum = testing::bf16_tile_product(sum, x, y);
    }
    return sum;
  }
  // The softmax of a panel, with or without gaps and a short end, is that of the other ISAs.
  void weigh_meanwhile(TileProducts& products) {
    const int rows = random_int(1, kTileKeys);
    uint32_t groups = 0;
    for (int g = 0; g * kPanel < rows; ++g) groups |= random_int(0, 3) == 0 ? 0u : 1u << g;
    auto scores = random_numbers<float>(kTileKeys * kPanel);
    auto m = random_numbers<float>(kPanel), l = random_numbers<float>(kPanel);
    std::vector<float> max(kPanel, 2), factor(kPanel);
    for (int lane = 0; lane < kPanel; lane += 5) max[lane] = m[lane] = rules::kNone<float>;
    for (int lane = 0; lane < kPanel; lane += 5)
      for (int key = 0; key < kTileKeys; ++key) scores[key * kPanel + lane] = rules::kNone<float>;
    auto weights = scores, other_m = m, other_l = l, other_factor = factor;
    std::vector<uint32_t> pairs(kTileKeys / 2 * kPanel);
    tiles()->softmax(
        {scores.data(), groups, rows, 0.7f, max.data(), m.data(), l.data(), factor.data()},
        pairs.data(), products);
    current_table().forward_f32->softmax({weights.data(), groups, rows, 0.7f, max.data(),
                                          other_m.data(), other_l.data(), other_factor.data()});
    EXPECT_TRUE(rules::same_bits(m.data(), other_m.data(), kPanel));
    EXPECT_TRUE(rules::same_bits(l.data(), other_l.data(), kPanel));
    EXPECT_TRUE(rules::same_bits(factor.data(), other_factor.data(), kPanel));
    for (int key = 0; key < kTileKeys; ++key) {
      if ((groups >> key / kPanel & 1) == 0) continue;
      for (int lane = 0; lane < kPanel; ++lane) {
        const uint32_t both = pairs[key / 2 * kPanel + lane];
        const float want = key < rows ? float{BFloat16(weights[key * kPanel + lane])} : 0.f;
        EXPECT_EQ(key % 2 == 0 ? even(both) : odd(both), want) << key;
      }
    }
  }
  static float step(uint32_t a, uint32_t b, float acc) {
    return testing::bf16_pair_product(current_isa(), acc, even(a), odd(a), even(b), odd(b));
  }
};

TEST_F(PairFunctionsTest, QueriesAndKeysPairAlongColumns) {
  for (int i = 0; i < 80; ++i) {
    const int rows = random_int(1, 64), columns = random_int(1, 300);
    const int panels = (rows + kPanel - 1) / kPanel, pairs = whole_steps((columns + 1) / 2);
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
    const int out_columns = (columns + 15) / 16 * 16, pairs = whole_steps((rows + 1) / 2);
    const ptrdiff_t column_step = i % 3 == 0 ? 2 : 1, row_step = columns * column_step + i % 2;
    const bool turned = tiles() != nullptr;  // rows are columns
    const int lines = turned ? out_columns : pairs, length = turned ? pairs : out_columns;
    const ptrdiff_t step = length + random_int(0, 2);
    const auto from = random_elements((rows - 1) * row_step + (columns - 1) * column_step + 1);
    std::vector<uint32_t> got((lines - 1) * step + length, 99), expected = got;
    const auto element = [&](int r, int c) {
      return r < rows && c < columns ? from[r * row_step + c * column_step] : BFloat16();
    };
    for (int p = 0; p < pairs; ++p)
      for (int c = 0; c < out_columns; ++c)
        expected[turned ? c * step + p : p * step + c] =
            pair(element(2 * p, c), element(2 * p + 1, c));
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
    const ChainRun run{.rows = keys};
    functions().pair_weights({.weights = weights.data(), .runs = &run, .run_count = 1});
    std::memcpy(got.data(), weights.data(), got.size() * sizeof(uint32_t));
    EXPECT_EQ(got, expected);
  }
}

TEST_F(PairFunctionsTest, SoftmaxWritesThePairsOfItsWeights) {
  if (functions().softmax == nullptr) GTEST_SKIP() << "products of tiles have their own";
  for (int rows : {1, 2, 7, 16, 17, 31, 48, 255, 256}) {
    const int all = (rows + kPanel - 1) / kPanel;
    std::vector<float> scores(rows * kPanel), max(kPanel, rules::kNone<float>);
    const uint32_t groups = (random_int(0, 0xffff) | 1u) & ((1u << all) - 1);
    for (int row = 0; row < rows; ++row) {
      for (int lane = 0; lane < kPanel; ++lane) {
        float& s = scores[row * kPanel + lane];
        s = random_int(0, 9) == 0 ? rules::kNone<float>
                                  : static_cast<float>(random_int(-4000, 4000)) / 256.f;
        if ((groups >> row / kPanel & 1) != 0) max[lane] = std::max(max[lane], s);
      }
    }
    struct State {
      std::vector<float> m, l, factor;
    };
    const State before{std::vector<float>(kPanel, 1.5f), std::vector<float>(kPanel, 3.f),
                       std::vector<float>(kPanel)};
    State expected = before, got = before;
    const auto args = [&](std::vector<float>& from, State& state) {
      return SoftmaxArgs<float>{.scores = from.data(),
                                .groups = groups,
                                .rows = rows,
                                .max = max.data(),
                                .m = state.m.data(),
                                .l = state.l.data(),
                                .factor = state.factor.data()};
    };
    std::vector<float> weights = scores;
    std::vector<uint32_t> pairs((rows + 1) / 2 * kPanel);
    functions().softmax(args(scores, got), pairs.data());
    current_table().forward_f32->softmax(args(weights, expected));
    EXPECT_EQ(got.m, expected.m);
    EXPECT_EQ(got.l, expected.l);
    EXPECT_EQ(got.factor, expected.factor);
    for (int g = 0; g < all; ++g) {
      if ((groups >> g & 1) == 0) continue;
      const int first = g * kPanel, keys = std::min(rows - first, kPanel);
      const ChainRun run{.weight_row = first, .rows = keys};
      functions().pair_weights({.weights = weights.data(), .runs = &run, .run_count = 1});
      EXPECT_EQ(std::memcmp(pairs.data() + first / 2 * kPanel, weights.data() + first * kPanel,
                            static_cast<std::size_t>((keys + 1) / 2 * kPanel) * 4),
                0)
          << rows << " rows, group " << g;
    }
  }
}

TEST_F(PairFunctionsTest, Scores) {
  for (int i = 0; i < 80; ++i) {
    const int rows = random_int(1, i % 8 == 0 ? 256 : 40), pairs = whole_steps(random_int(1, 70));
    const int panels = random_int(1, kQueryPanels);
    const ptrdiff_t key_step = pairs + random_int(0, 3);
    const auto keys = random_pairs((rows - 1) * key_step + pairs);
    const auto queries = random_pairs((pairs - 1) * kQueryTile + panels * kPanel);
    std::vector<float> got((panels - 1) * kScorePanelStep + rows * kPanel, 77.f), expected = got;
    std::vector<float> max(panels * kPanel, rules::kNone<float>), expected_max = max;
    for (int r = 0; r < rows; ++r) {
      for (int lane = 0; lane < panels * kPanel; ++lane) {
        const float s = sum_of(
            pairs, [&](int p) { return keys[r * key_step + p]; },
            [&](int p) { return queries[p * kQueryTile + lane]; });
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

// Every bit pattern: subnormals, infinities, NaN, sums that overflow, vanish or cancel.
TEST_F(PairFunctionsTest, StepsOfAllNumbers) {
  if (tiles() != nullptr) GTEST_SKIP() << "see ProductsOfTiles";
  constexpr int kRows = 100, kPairs = 3;
  for (int i = 0; i < 40; ++i) {
    std::vector<uint32_t> keys(kRows * kPairs), queries(kPairs * kQueryTile);
    const int spread = i % 4 == 0 ? 127 : 30;  // of the exponents around that of 1
    const auto number = [&] {
      const int exponent = 127 + random_int(-spread, spread + spread / 127);
      return static_cast<uint32_t>(random_int(0, 1) << 15 | exponent << 7 | random_int(0, 127));
    };
    for (uint32_t& pair : keys) pair = number() | number() << 16;
    for (uint32_t& pair : queries) pair = number() | number() << 16;
    for (int p = 0; p < kPairs; p += 2)  // cancels
      keys[p] = (keys[p] & 0xffffu) | (keys[p] << 16 ^ 0x80000000u);
    std::vector<float> got(kRows * kPanel), expected = got, max(kPanel, rules::kNone<float>);
    for (int r = 0; r < kRows; ++r)
      for (int lane = 0; lane < kPanel; ++lane)
        expected[r * kPanel + lane] = rules::dot<float>(kPairs, 2, [&](int p, float acc) {
          return step(keys[r * kPairs + p], queries[p * kQueryTile + lane], acc);
        });
    functions().scores({.keys = keys.data(),
                        .key_step = kPairs,
                        .rows = kRows,
                        .dims = kPairs,
                        .panels = 1,
                        .queries = queries.data(),
                        .scores = got.data(),
                        .max = max.data()});
    for (size_t at = 0; at < got.size(); ++at) {
      const bool both_nan = std::isnan(got[at]) && std::isnan(expected[at]);
      EXPECT_TRUE(both_nan || rules::same_bits(&got[at], &expected[at], 1))
          << got[at] << " " << expected[at];
    }
  }
}

TEST_F(PairFunctionsTest, Outputs) {
  if (tiles() != nullptr) GTEST_SKIP() << "see ProductsOfTiles";
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

// Two groups of rows by two of columns, a step at a time, while a softmax runs or after it.
TEST_F(PairFunctionsTest, ProductsOfTiles) {
  if (tiles() == nullptr) GTEST_SKIP() << "no tile registers on this ISA";
  for (int i = 0; i < 40; ++i) {
    const int steps = random_int(1, 9), pairs = 16 * steps, count = random_int(1, 5);
    const ptrdiff_t a_row = pairs + random_int(0, 3), b_row = 32 + 16 * random_int(0, 2);
    const auto a = random_pairs(static_cast<size_t>(count * 32 * a_row));
    const auto b = random_pairs(static_cast<size_t>(pairs * b_row));
    std::vector<float> got(static_cast<size_t>(count * 32 * 32)), expected = got;
    TileProducts products;
    for (int p = 0; p < count; ++p) {
      products.list[products.count++] = {.a = reinterpret_cast<const char*>(&a[p * 32 * a_row]),
                                         .a_row = a_row * 4,
                                         .a_next = 16 * a_row * 4,
                                         .b = reinterpret_cast<const char*>(b.data()),
                                         .b_row = b_row * 4,
                                         .b_next = 64,
                                         .steps = steps,
                                         .out = reinterpret_cast<char*>(&got[p * 32 * 32]),
                                         .a_out = 1024,
                                         .b_out = 2048};
      for (int row = 0; row < 32; ++row)
        for (int column = 0; column < 32; ++column)
          expected[p * 32 * 32 + column / 16 * 512 + row * 16 + column % 16] = sum_of(
              pairs, [&](int s) { return a[(p * 32 + row) * a_row + s]; },
              [&](int s) { return b[s * b_row + column]; });
    }
    if (i % 2 == 0) weigh_meanwhile(products);
    tiles()->run(products);
    EXPECT_EQ(products.count, 0);
    EXPECT_TRUE(rules::same_bits(got.data(), expected.data(), got.size())) << steps;
  }
}

TEST_F(PairFunctionsTest, SumsOfTiles) {
  if (tiles() == nullptr) GTEST_SKIP() << "no tile registers on this ISA";
  const int columns = 48;
  const auto sums = random_numbers<float>(columns * kPanel), factor = random_numbers<float>(kPanel);
  for (const bool fresh : {true, false}) {
    auto got = random_numbers<float>(columns * kPanel), expected = got;
    for (size_t i = 0; i < got.size(); ++i)
      expected[i] = fresh ? sums[i] : got[i] * factor[i % kPanel] + sums[i];
    tiles()->add_sums({sums.data(), fresh ? nullptr : factor.data(), columns, got.data()});
    EXPECT_TRUE(rules::same_bits(got.data(), expected.data(), got.size()));
  }
}

// Against the same in rows.
TEST_F(PairFunctionsTest, FoldsByTiles) {
  if (tiles() == nullptr) GTEST_SKIP() << "no tile registers on this ISA";
  for (int i = 0; i < 40; ++i) {
    const int columns = 16 * random_int(1, 9);
    const size_t size = static_cast<size_t>(columns) * kPanel;
    std::vector<float> o = random_numbers<float>(size), split_o = random_numbers<float>(size);
    std::vector<float> m = random_numbers<float>(kPanel), split_m = random_numbers<float>(kPanel);
    std::vector<float> l(kPanel, 3), split_l(kPanel, 5);
    for (int lane = 0; lane < kPanel; ++lane) {
      if (random_int(0, 3) == 0) m[lane] = rules::kNone<float>;
      if (random_int(0, 3) == 0) split_m[lane] = rules::kNone<float>;
    }
    std::vector<float> rows(size), split_rows(size), folded(size);
    tiles()->rows(o.data(), columns, rows.data());
    tiles()->rows(split_o.data(), columns, split_rows.data());
    auto row_m = m, row_l = l;
    current_table().forward_f32->fold({.m = row_m.data(),
                                       .l = row_l.data(),
                                       .o = rows.data(),
                                       .split_m = split_m.data(),
                                       .split_l = split_l.data(),
                                       .split_o = split_rows.data(),
                                       .queries = kPanel,
                                       .columns = columns,
                                       .step = columns,
                                       .exponent_factor = 0.7f});
    tiles()->fold({.m = m.data(),
                   .l = l.data(),
                   .o = o.data(),
                   .split_m = split_m.data(),
                   .split_l = split_l.data(),
                   .split_o = split_o.data(),
                   .columns = columns,
                   .exponent_factor = 0.7f});
    tiles()->rows(o.data(), columns, folded.data());
    EXPECT_TRUE(rules::same_bits(folded.data(), rows.data(), size));
    EXPECT_TRUE(rules::same_bits(m.data(), row_m.data(), kPanel));
    EXPECT_TRUE(rules::same_bits(l.data(), row_l.data(), kPanel));
  }
}

}  // namespace
}  // namespace quire
