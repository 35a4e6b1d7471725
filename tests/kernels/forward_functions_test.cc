// The arithmetic of the prefill primitives: scores, mask, softmax and products with values give the
// bits of the rules (support/attention_rules.h) for every size, write what they should and nothing
// else. ctest runs this once per ISA; buffers are as large as the contract says, so that
// AddressSanitizer sees a read or write outside.
#include "tests/support/forward_functions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

namespace quire {
namespace {

using namespace kernels;
using rules::kNone;

template <class T>
class ForwardFunctionsOf : public ::testing::Test {};
TYPED_TEST_SUITE(ForwardFunctionsOf, ComputeTypes, ComputeTypeName);

template <class T>
void check_scores(int rows, int dims, int panels, ptrdiff_t step, bool keep_max) {
  const auto keys = random_numbers<T>(span_of(rows, step, dims));
  const auto queries =
      random_numbers<T>(static_cast<size_t>((dims - 1) * kQueryTile + panels * kPanel));
  std::vector<T> got(scores_size(panels, rows), T{77}), expected = got;
  std::vector<T> max(static_cast<size_t>(panels * kPanel), T{-3}), expected_max = max;
  for (int r = 0; r < rows; ++r) {
    for (int lane = 0; lane < panels * kPanel; ++lane) {
      const T s = rules::dot<T>(dims, 1, [&](int d, T acc) {
        return std::fma(keys[r * step + d], queries[d * kQueryTile + lane], acc);
      });
      expected[lane / kPanel * kScorePanelStep + r * kPanel + lane % kPanel] = s;
      if (keep_max) expected_max[lane] = rules::raise(expected_max[lane], s);
    }
  }
  forward_functions<T>().scores({.keys = keys.data(),
                                 .key_step = step,
                                 .rows = rows,
                                 .dims = dims,
                                 .panels = panels,
                                 .queries = queries.data(),
                                 .scores = got.data(),
                                 .max = keep_max ? max.data() : nullptr});
  const std::string what = std::to_string(rows) + " keys, " + std::to_string(dims) + " dims, " +
                           std::to_string(panels) + " panels";
  expect_same(got, expected, what);
  expect_same(max, expected_max, what + ", maximum");
}

TYPED_TEST(ForwardFunctionsOf, ScoresOfEveryNumberOfRowsAndPanels) {
  for (int panels = 1; panels <= kQueryPanels; ++panels)
    for (int rows = 1; rows <= 34; ++rows) check_scores<TypeParam>(rows, 9, panels, 9, rows % 2);
}

TYPED_TEST(ForwardFunctionsOf, ScoresOfManyShapes) {
  for (const int dims : {1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 66, 128, 129, 1024})
    check_scores<TypeParam>(17, dims, 4, dims + 3, true);
  for (int i = 0; i < 40; ++i) {
    const int dims = random_int(1, 150);
    check_scores<TypeParam>(random_int(1, kTileKeys), dims, random_int(1, kQueryPanels),
                            dims + random_int(0, 20), i % 2 == 0);
  }
}

// A NaN score is not the maximum, and keeps none of the other scores from being it.
TYPED_TEST(ForwardFunctionsOf, ScoresThatAreNanAreNotTheMaximum) {
  using T = TypeParam;
  const std::vector<T> keys{1, std::numeric_limits<T>::quiet_NaN(), 3, 2};
  std::vector<T> queries(kPanel, T{1}), scores(4 * kPanel), max(kPanel, kNone<T>);
  forward_functions<T>().scores({.keys = keys.data(),
                                 .key_step = 1,
                                 .rows = 4,
                                 .dims = 1,
                                 .panels = 1,
                                 .queries = queries.data(),
                                 .scores = scores.data(),
                                 .max = max.data()});
  for (const T m : max) EXPECT_EQ(m, T{3});
  for (int lane = 0; lane < kPanel; ++lane) EXPECT_TRUE(std::isnan(scores[kPanel + lane]));
}

TYPED_TEST(ForwardFunctionsOf, MaskHidesAndRaisesTheMaximum) {
  using T = TypeParam;
  for (int i = 0; i < 60; ++i) {
    const int panels = random_int(1, kQueryPanels), rows = random_int(1, 40);
    const int first_lane = kPanel * random_int(0, kQueryPanels - panels);
    auto got = random_numbers<T>(scores_size(panels, rows)), expected = got;
    std::vector<uint64_t> words(rows);
    for (uint64_t& word : words) word = uint64_t{generator()()} << 32 | generator()();
    words[0] = 0;
    std::vector<T> max(panels * kPanel, kNone<T>), expected_max = max;
    for (int lane = 0; lane < panels * kPanel; ++lane) {
      for (int r = 0; r < rows; ++r) {
        T& s = expected[lane / kPanel * kScorePanelStep + r * kPanel + lane % kPanel];
        if ((words[r] >> (first_lane + lane) & 1) == 0) s = kNone<T>;
        expected_max[lane] = rules::raise(expected_max[lane], s);
      }
    }
    forward_functions<T>().mask_scores({.scores = got.data(),
                                        .rows = rows,
                                        .panels = panels,
                                        .first_lane = first_lane,
                                        .words = words.data(),
                                        .max = max.data()});
    expect_same(got, expected, "scores");
    expect_same(max, expected_max, "maximum");
  }
}

// --- Softmax.

template <class T>
struct SoftmaxState {
  std::vector<T> scores, max = std::vector<T>(kPanel), m = max, l = max, factor = max;
};

template <class T>
void softmax_by_the_rules(SoftmaxState<T>& s, uint32_t groups, int rows, T c) {
  for (int lane = 0; lane < kPanel; ++lane) {
    const T m = rules::raise(s.m[lane], s.max[lane]);
    const T subtracted = m == kNone<T> ? T{0} : m;
    T sums[kPartialSums] = {};
    for (int key = 0; key < rows; ++key) {
      if ((groups >> (key / kPanel) & 1) == 0) continue;
      T& x = s.scores[key * kPanel + lane];
      x = rules::exp2(x - subtracted, c);
      sums[key % kPartialSums] += x;
    }
    for (const int half : {8, 4, 2, 1})
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    s.factor[lane] = rules::factor(s.m[lane], m, c);
    s.l[lane] = std::fma(s.l[lane], s.factor[lane], sums[0]);
    s.m[lane] = m;
  }
}

template <class T>
void check_softmax(SoftmaxState<T> state, uint32_t groups, int rows, T c) {
  SoftmaxState<T> expected = state;
  softmax_by_the_rules(expected, groups, rows, c);
  forward_functions<T>().softmax({.scores = state.scores.data(),
                                  .groups = groups,
                                  .rows = rows,
                                  .exponent_factor = c,
                                  .max = state.max.data(),
                                  .m = state.m.data(),
                                  .l = state.l.data(),
                                  .factor = state.factor.data()});
  const std::string what = std::to_string(rows) + " keys, groups " + std::to_string(groups);
  expect_same(state.scores, expected.scores, what);
  expect_same(state.m, expected.m, what + ", m");
  expect_same(state.l, expected.l, what + ", l");
  expect_same(state.factor, expected.factor, what + ", factor");
}

// Rows that saw nothing before, saw something, do not see anything now, and do not move.
template <class T>
SoftmaxState<T> random_state(uint32_t groups, int rows) {
  SoftmaxState<T> s;
  s.scores = random_numbers<T>(static_cast<size_t>(rows * kPanel), random_int(0, 1) ? 5 : 80);
  for (int lane = 0; lane < kPanel; ++lane) {
    s.max[lane] = s.m[lane] = kNone<T>;
    for (int key = 0; key < rows; ++key) {
      T& x = s.scores[key * kPanel + lane];
      if (lane % 5 == 1 || random_int(0, 9) == 0) x = kNone<T>;
      if (groups >> (key / kPanel) & 1) s.max[lane] = rules::raise(s.max[lane], x);
    }
    if (lane % 3 == 0) s.m[lane] = s.max[lane] + random_numbers<T>(1)[0];
    if (lane % 3 == 1) s.m[lane] = s.max[lane];
    s.l[lane] = s.m[lane] == kNone<T> ? T{0} : T{3};
  }
  return s;
}

TYPED_TEST(ForwardFunctionsOf, SoftmaxFollowsTheRules) {
  using T = TypeParam;
  for (int rows = 1; rows <= 48; ++rows) {
    const uint32_t groups = (1u << ((rows + 15) / 16)) - 1;
    check_softmax(random_state<T>(groups, rows), groups, rows, rules::kLog2E<T>);
  }
  for (int i = 0; i < 60; ++i) {
    const int rows = random_int(1, kTileKeys);
    const uint32_t all = (1u << ((rows + 15) / 16)) - 1, groups = generator()() & all;
    const T c = i % 3 == 0 ? T{1} : i % 3 == 1 ? T(0.3) : std::numeric_limits<T>::denorm_min();
    check_softmax(random_state<T>(groups, rows), groups, rows, c);
  }
}

TYPED_TEST(ForwardFunctionsOf, SoftmaxOfNanIsNan) {
  using T = TypeParam;
  for (const T c : {T{1}, rules::kLog2E<T>}) {
    std::vector<T> scores(3 * kPanel, T{1}), max(kPanel, T{1}), m(kPanel, kNone<T>), l(kPanel),
        factor(kPanel);
    scores[kPanel + 2] = std::numeric_limits<T>::quiet_NaN();
    max[5] = scores[5] = std::numeric_limits<T>::infinity();
    forward_functions<T>().softmax({.scores = scores.data(),
                                    .groups = 1,
                                    .rows = 3,
                                    .exponent_factor = c,
                                    .max = max.data(),
                                    .m = m.data(),
                                    .l = l.data(),
                                    .factor = factor.data()});
    for (int lane = 0; lane < kPanel; ++lane)
      EXPECT_EQ(std::isnan(l[lane]), lane == 2 || lane == 5) << lane;
    EXPECT_EQ(scores[kPanel + 5], T{0});
  }
}

// --- Products with values.

// Stretches of keys with gaps between some, of chains that end at some.
std::vector<ChainRun> random_chain_runs(int keys) {
  std::vector<ChainRun> runs;
  for (int at = 0; at < keys;) {
    const int rows = std::min(keys - at, random_int(1, 40));
    runs.push_back({at, at, rows, random_int(0, 2) != 0});
    at += rows + (random_int(0, 1) ? 0 : random_int(1, 20));
  }
  runs.back().ends_chain = true;
  return runs;
}

template <class T>
void check_accumulate(const std::vector<ChainRun>& runs, int queries, int columns,
                      ptrdiff_t value_step, ptrdiff_t out_step, bool start) {
  const int keys = runs.back().value_row + runs.back().rows;
  const auto weights = random_numbers<T>(static_cast<size_t>((keys - 1) * kPanel + queries));
  const auto values = random_numbers<T>(span_of(keys, value_step, columns));
  const auto factor = random_numbers<T>(static_cast<size_t>(queries));
  auto got = random_numbers<T>(span_of(queries, out_step, columns)), expected = got;
  for (int q = 0; q < queries; ++q) {
    for (int c = 0; c < columns; ++c) {
      T& o = expected[q * out_step + c];
      bool is_first = true;
      T chain = 0;
      if (!start) o *= factor[q];
      for (const ChainRun& run : runs) {
        for (int k = run.value_row; k < run.value_row + run.rows; ++k)
          chain = std::fma(weights[k * kPanel + q], values[k * value_step + c], chain);
        if (!run.ends_chain) continue;
        o = start && is_first ? chain : o + chain;
        is_first = false;
        chain = 0;
      }
    }
  }
  forward_functions<T>().accumulate({.runs = runs.data(),
                                     .run_count = static_cast<int>(runs.size()),
                                     .weights = weights.data(),
                                     .values = values.data(),
                                     .value_step = value_step,
                                     .queries = queries,
                                     .columns = columns,
                                     .out = got.data(),
                                     .out_step = out_step,
                                     .factor = start ? nullptr : factor.data()});
  expect_same(got, expected,
              std::to_string(keys) + " keys, " + std::to_string(queries) + " queries, " +
                  std::to_string(columns) + " columns");
}

TYPED_TEST(ForwardFunctionsOf, OutputsOfEveryNumberOfQueriesAndColumns) {
  for (int queries = 1; queries <= kPanel; ++queries)
    for (int columns = 16; columns <= 144; columns += 16)
      check_accumulate<TypeParam>({{0, 0, 7}, {7, 7, 1 + queries % 3}}, queries, columns,
                                  columns + 5, columns + 16, queries % 2);
}

TYPED_TEST(ForwardFunctionsOf, OutputsOfManyShapes) {
  check_accumulate<TypeParam>(random_chain_runs(kTileKeys), kPanel, 1024, 1024, 1024, false);
  for (int i = 0; i < 40; ++i) {
    const int columns = 16 * random_int(1, 12);
    check_accumulate<TypeParam>(random_chain_runs(random_int(1, kTileKeys)), random_int(1, kPanel),
                                columns, columns + random_int(0, 9), columns + random_int(0, 9),
                                i % 2 == 0);
  }
}

}  // namespace
}  // namespace quire
