// The running error bound: exact where f32 is exact, tight for ordinary formulas, uncertain where a
// decision is close.
#include "tests/support/error_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/reference/plain_float.h"
#include "tests/reference/trace.h"

namespace quire::reference {
namespace {

using testing::PlainFloat;
using testing::trace;

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class F>
Bound bound_of(const F& f, const Point& point = {}) {
  BoundedEvaluator evaluator(trace(f));
  evaluator.run(point);
  return evaluator.bound();
}

template <class F>
bool is_certain(const F& f, const Point& point = {}) {
  return !bound_of(f, point).uncertain;
}

TEST(ErrorBound, ExactArithmeticHasNoError) {
  const Point point{.q_idx = 100, .kv_idx = 37, .score = 0.375};
  const auto exact = [&](const auto& f) {
    return bound_of(f, point).error == 0 && is_certain(f, point);
  };
  EXPECT_TRUE(exact([](auto s, auto, auto, auto, auto) { return s; }));
  EXPECT_TRUE(exact([](auto s, auto, auto, auto q, auto kv) { return s * (kv - q) + 0.5; }));
  EXPECT_TRUE(exact([](auto, auto, auto, auto q, auto) { return sqrt(to_float(q)) / 4.0; }));
  EXPECT_TRUE(exact([](auto, auto, auto, auto q, auto kv) {
    return floor_div(to_float(q), to_float(kv)) + to_float(q) % 7.5;
  }));
  EXPECT_TRUE(exact([](auto s, auto, auto, auto, auto) { return s + kInf; }));
  EXPECT_FALSE(exact([](auto s, auto, auto, auto, auto) { return s + 0.1; }));
  EXPECT_FALSE(exact([](auto s, auto, auto, auto, auto) { return s / 7.0; }));
  EXPECT_FALSE(exact([](auto s, auto, auto, auto, auto) { return exp(s); }));
}

TEST(ErrorBound, RoundingsAreAboutHalfAnUlp) {
  const double tenth =
      bound_of([](auto, auto, auto, auto q, auto) { return 0.1 + 0 * to_float(q); }).error;
  EXPECT_GE(tenth, std::abs(0.1 - double{0.1f}));
  EXPECT_LE(tenth, 3 * 0.1 * 0x1p-24);
  const std::int64_t odd = (std::int64_t{1} << 30) + 33;
  const auto cast =
      bound_of([](auto, auto, auto, auto q, auto) { return to_float(q); }, {.q_idx = odd});
  EXPECT_GE(cast.error, std::abs(static_cast<double>(odd) - double{static_cast<float>(odd)}));
  EXPECT_LE(cast.error, 65);
  const Buffer doubles(std::vector<double>{0.1, 0.5});
  EXPECT_GT(bound_of([&](auto, auto, auto, auto q, auto) { return doubles[q]; }).error, 0);
  EXPECT_EQ(
      bound_of([&](auto, auto, auto, auto q, auto) { return doubles[q]; }, {.q_idx = 1}).error, 0);
}

TEST(ErrorBound, CloseDecisionsAreUncertain) {
  const Point third{.score = 3};
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return 1.0 / s < 0.3333333333; }, third));
  EXPECT_TRUE(is_certain([](auto s, auto, auto, auto, auto) { return 1.0 / s < 0.3334; }, third));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return floor(s * 0.1 * 10.0); }, third));
  EXPECT_TRUE(is_certain([](auto s, auto, auto, auto, auto) { return floor(s * 0.1 * 10.0 + 0.5); },
                         third));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return to_int(s * 0.1 * 10.0); }, third));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return sign(s * 0.1 - 0.3); }, third));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return to_bool(s * 0.1 - 0.3); }, third));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return (s * 0.1 * 10.0) % 1.0; }, third));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return floor_div(s * 0.1, 0.1); }, third));
  EXPECT_TRUE(
      is_certain([](auto s, auto, auto, auto, auto) { return (s * 0.1 * 10.0) % 1.7; }, third));
}

TEST(ErrorBound, UncertaintySpreadsUnlessItIsNotUsed) {
  const Point third{.score = 3};
  const auto close = [](auto s) { return 1.0 / s < 0.3333333333; };
  const Buffer table(std::vector<float>{1, 2});
  EXPECT_FALSE(
      is_certain([&](auto s, auto, auto, auto, auto) { return where(close(s), 1, 2) + 1; }, third));
  EXPECT_FALSE(is_certain(
      [&](auto s, auto, auto, auto, auto) { return table[to_int(s * 0.1 * 10.0) - 3]; }, third));
  EXPECT_FALSE(
      is_certain([&](auto s, auto, auto, auto q, auto) { return close(s) && q == 0; }, third));
  EXPECT_TRUE(
      is_certain([&](auto s, auto, auto, auto q, auto) { return close(s) && q == 1; }, third));
  EXPECT_TRUE(
      is_certain([&](auto s, auto, auto, auto q, auto) { return close(s) || q == 0; }, third));
  EXPECT_TRUE(is_certain(
      [&](auto s, auto, auto, auto q, auto) { return where(q == 0, 1.0, floor(s * 0.1 * 10.0)); },
      third));
  EXPECT_FALSE(is_certain(
      [&](auto s, auto, auto, auto q, auto) { return where(q == 1, 1.0, floor(s * 0.1 * 10.0)); },
      third));
}

TEST(ErrorBound, OverflowPolesAndDomains) {
  const auto at = [](double score) { return Point{.score = score}; };
  const auto square = [](auto s, auto, auto, auto, auto) { return s * s; };
  EXPECT_TRUE(is_certain(square, at(1e18)));
  EXPECT_FALSE(is_certain(square, at(1e20))) << "inf in f32 alone";
  const auto exponential = [](auto s, auto, auto, auto, auto) { return exp(s); };
  EXPECT_FALSE(is_certain(exponential, at(100)));
  EXPECT_TRUE(is_certain(exponential, at(1000))) << "inf in both";
  EXPECT_TRUE(is_certain(exponential, at(-1000)));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return 1.0 / (s * 0.1 - 0.3); }, at(3)));
  EXPECT_FALSE(is_certain([](auto s, auto, auto, auto, auto) { return 1.0 / s; }, at(0)))
      << "which zero?";
  EXPECT_TRUE(is_certain([](auto s, auto, auto, auto, auto) { return s / s; }, at(0)))
      << "NaN in both";
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return sqrt(s * 0.1 - 0.3); }, at(3)));
  EXPECT_TRUE(
      is_certain([](auto s, auto, auto, auto, auto) { return sqrt(s * 0.1 - 1.3); }, at(3)));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return log(s * 0.1 - 0.3); }, at(3)));
  EXPECT_TRUE(is_certain([](auto s, auto, auto, auto, auto) { return log(s); }, at(0)));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return (s * 0.1 - 0.3) * kInf; }, at(3)));
  EXPECT_TRUE(is_certain([](auto s, auto, auto, auto, auto) { return (s * 0.1) * kInf; }, at(3)));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return pow(s * 0.1 - 0.3, s); }, at(3)));
  EXPECT_FALSE(
      is_certain([](auto s, auto, auto, auto, auto) { return pow(-s, s * 0.1 * 10.0); }, at(3)));
  EXPECT_TRUE(is_certain([](auto s, auto, auto, auto, auto) { return pow(-s * 0.1, s); }, at(3)));
}

TEST(ErrorBound, PowersOfNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto to_nan = [&](auto s, auto, auto, auto, auto) { return pow(s * 0.1 * 2.5, nan); };
  EXPECT_FALSE(is_certain(to_nan, {.score = 4})) << "1 ** NaN is 1";
  EXPECT_TRUE(is_certain(to_nan, {.score = 5}));
  const auto of_nan = [&](auto s, auto, auto, auto, auto) { return pow(nan, s * 0.1 - 0.3); };
  EXPECT_FALSE(is_certain(of_nan, {.score = 3})) << "NaN ** 0 is 1";
  EXPECT_TRUE(is_certain(of_nan, {.score = 4}));
}

TEST(ErrorBound, MinimumTakesTheErrorOfWhatIsChosen) {
  const Point point{.score = 3};
  const auto chosen =
      bound_of([](auto s, auto, auto, auto, auto) { return minimum(s * 0.1, 1.0); }, point);
  const auto own = bound_of([](auto s, auto, auto, auto, auto) { return s * 0.1; }, point);
  EXPECT_EQ(chosen.error, own.error);
  EXPECT_EQ(bound_of([](auto s, auto, auto, auto, auto) { return clamp(s * 0.1, 1.0, 2.0); }, point)
                .error,
            0);
  EXPECT_EQ(bound_of([](auto s, auto, auto, auto, auto) { return relu(s * -0.1); }, point).error,
            0);
}

TEST(ErrorBound, ModelIsAParameter) {
  ErrorModel loose;
  loose.ulps[static_cast<std::size_t>(Op::kExp)] = 400;
  loose.sin_cos_range = 1;
  const Formula f = trace([](auto s, auto, auto, auto, auto) { return exp(s); });
  BoundedEvaluator strict_bounds(f), loose_bounds(f, loose);
  strict_bounds.run({.score = 1.25});
  loose_bounds.run({.score = 1.25});
  EXPECT_NEAR(loose_bounds.bound().error / strict_bounds.bound().error, 100, 1);
  BoundedEvaluator sine(trace([](auto s, auto, auto, auto, auto) { return sin(s); }), loose);
  sine.run({.score = 1.25});
  EXPECT_TRUE(sine.bound().uncertain);
}

// A softcapped, biased score: the bound holds at every point and is within 100 times the largest
// error seen.
TEST(ErrorBound, IsTightForOrdinaryFormulas) {
  const Buffer slopes(std::vector<float>{0.3f, 0.7f, 0.11f});
  const Buffer table(Tensor::from<double>({0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, {3, 2}));
  const Formula formulas[] = {
      trace([&](auto s, auto, auto h, auto q, auto kv) { return s + slopes[h] * (kv - q); }),
      trace([&](auto s, auto, auto, auto, auto) { return 20.0 * tanh(s / 20.0); }),
      trace([&](auto s, auto, auto h, auto q, auto kv) {
        return where(q > kv, s * slopes[h], s - table(h, 0));
      }),
      trace([&](auto s, auto, auto h, auto, auto) {
        return s * dot(table[h], table[0]) + sum(table[h]);
      })};
  std::mt19937_64 random(7);
  for (const Formula& f : formulas) {
    BoundedEvaluator bounds(f);
    PlainFloat program(bounds.evaluator(), 1, 1);
    double largest_error = 0, largest_bound = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
      const float score = static_cast<float>(below(20001) - 10000) / 1024.f;
      const Point point{.h = below(3), .q_idx = below(50), .kv_idx = below(50), .score = score};
      const double exact = bounds.run(point).f;
      program.run(point);
      ASSERT_FALSE(bounds.bound().uncertain);
      const double error = std::abs(double{program[f.root()].f} - exact);
      ASSERT_LE(error, bounds.bound().error);
      largest_error = std::max(largest_error, error);
      largest_bound = std::max(largest_bound, bounds.bound().error);
    }
    EXPECT_GT(largest_error, largest_bound / 100);
  }
}

}  // namespace
}  // namespace quire::reference
