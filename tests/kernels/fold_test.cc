// Folding the states of splits gives the bits of the rules (support/attention_rules.h), skips what
// saw nothing, and takes the first one as it is. ctest runs this once per ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/forward_functions.h"

namespace quire {
namespace {

using rules::kNone;

template <class T>
class FoldOf : public ::testing::Test {};
TYPED_TEST_SUITE(FoldOf, ComputeTypes, ComputeTypeName);

TYPED_TEST(FoldOf, FollowsTheRules) {
  using T = TypeParam;
  for (int i = 0; i < 60; ++i) {
    const int queries = random_int(1, kernels::kQueryTile), columns = 16 * random_int(1, 5);
    const ptrdiff_t step = columns + random_int(0, 3);
    const T factor = i % 2 == 0 ? rules::kLog2E<T> : T(0.3);
    auto m = random_numbers<T>(queries, 30), split_m = random_numbers<T>(queries, 30);
    auto l = random_numbers<T>(queries), split_l = random_numbers<T>(queries);
    auto o = random_numbers<T>(span_of(queries, step, columns));
    auto split_o = random_numbers<T>(o.size());
    for (int q = 0; q < queries; ++q) {
      const int kind = random_int(0, 5);
      if (kind == 0 || kind == 1) m[q] = kNone<T>;
      if (kind == 1 || kind == 2) split_m[q] = kNone<T>;
      if (kind == 3) m[q] = split_m[q];
      if (kind == 2) split_o[q * step] = std::numeric_limits<T>::quiet_NaN();
    }
    auto expected_m = m, expected_l = l, expected_o = o;
    for (int q = 0; q < queries; ++q) {
      if (split_m[q] == kNone<T>) continue;
      const bool first = m[q] == kNone<T>;
      const T to = rules::raise(m[q], split_m[q]);
      const T a = rules::factor(m[q], to, factor), b = rules::factor(split_m[q], to, factor);
      expected_m[q] = to;
      expected_l[q] = first ? split_l[q] : std::fma(l[q], a, split_l[q] * b);
      for (int c = 0; c < columns; ++c) {
        const T other = split_o[q * step + c];
        expected_o[q * step + c] = first ? other : std::fma(o[q * step + c], a, other * b);
      }
    }
    forward_functions<T>().fold({.m = m.data(),
                                 .l = l.data(),
                                 .o = o.data(),
                                 .split_m = split_m.data(),
                                 .split_l = split_l.data(),
                                 .split_o = split_o.data(),
                                 .queries = queries,
                                 .columns = columns,
                                 .step = step,
                                 .exponent_factor = factor});
    expect_same(m, expected_m, "m");
    expect_same(l, expected_l, "l");
    expect_same(o, expected_o, "O");
  }
}

// The exponential of f64 through the fold of a row of which one side weighs 2^x: its error, and 1,
// 0 and NaN where they are due.
TEST(Fold, ExponentialOfF64) {
  const auto exponential = [](double x) {
    double m = 0, l = 0, split_m = x, split_l = 1;
    std::vector<double> o(16), split_o(16);
    forward_functions<double>().fold({.m = &m,
                                      .l = &l,
                                      .o = o.data(),
                                      .split_m = &split_m,
                                      .split_l = &split_l,
                                      .split_o = split_o.data(),
                                      .queries = 1,
                                      .columns = 16,
                                      .step = 16});
    return l;
  };
  EXPECT_EQ(exponential(0), 1);
  EXPECT_EQ(exponential(-3), 0.125);
  EXPECT_EQ(exponential(-960), 0x1p-960);
  EXPECT_EQ(exponential(-960.501), 0);
  double worst = 0;
  std::uniform_real_distribution<double> distribution(-950, 0), near(-1.5, 0);
  for (int i = 0; i < 20000; ++i) {
    const double x = i % 2 == 0 ? distribution(generator()) : near(generator());
    const long double exact = std::exp2(static_cast<long double>(x));
    worst = std::max(worst, static_cast<double>(std::fabs(exponential(x) / exact - 1)));
  }
  EXPECT_LT(worst, 1.5e-16);
}

}  // namespace
}  // namespace quire
