// The min/max tree against brute force.
#include "formula/bound/minmax_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "quire/tensor.h"

namespace quire::formula {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Values of a range as a formula sees them, looked at one by one.
Interval brute_force(const std::vector<double>& values, std::int64_t first, std::int64_t last,
                     bool is_float) {
  double lo = kInf, hi = -kInf;
  bool nan = false;
  for (std::int64_t i = first; i <= last; ++i) {
    const double x = values[static_cast<std::size_t>(i)];
    nan |= std::isnan(x);
    lo = std::fmin(lo, x);
    hi = std::fmax(hi, x);
  }
  if (!is_float)
    return Interval::ints(static_cast<std::int64_t>(lo), static_cast<std::int64_t>(hi));
  return lo > hi ? Interval::any_float() : Interval::floats(lo, hi, nan);
}

void expect_same(const Interval& got, const Interval& want) {
  ASSERT_EQ(got.type, want.type);
  if (want.type == ValueType::kInt) {
    ASSERT_EQ(got.int_lo, want.int_lo);
    ASSERT_EQ(got.int_hi, want.int_hi);
  } else {
    ASSERT_EQ(got.float_lo, want.float_lo);
    ASSERT_EQ(got.float_hi, want.float_hi);
    ASSERT_EQ(got.maybe_nan, want.maybe_nan);
  }
}

// Small integers, and for floats now and then a NaN; exact in every dtype.
std::vector<double> random_values(std::mt19937_64& random, std::size_t count, DType dtype) {
  std::vector<double> values(count);
  for (double& x : values) {
    x = static_cast<double>(random() % 100);
    if (dtype == DType::boolean) x = x < 50 ? 0 : 1;
    if (is_floating(dtype) && random() % 20 == 0) x = kNan;
  }
  return values;
}

TEST(MinMaxTree, EveryRangeOfSmallArraysOfEveryDtype) {
  std::mt19937_64 random(1);
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const std::size_t count : {1u, 2u, 15u, 16u, 17u, 40u, 257u}) {
      const std::vector<double> values = random_values(random, count, dtype);
      const MinMaxTree tree(to(Tensor::from(values), dtype), Precision::kF32);
      const auto n = static_cast<std::int64_t>(count);
      ASSERT_EQ(tree.size(), n);
      for (std::int64_t first = 0; first < n; ++first)
        for (std::int64_t last = first; last < n; ++last)
          expect_same(tree.query(first, last),
                      brute_force(values, first, last, is_floating(dtype)));
    }
  }
}

TEST(MinMaxTree, RandomRangesOfALargeArray) {
  std::mt19937_64 random(2);
  std::vector<double> values(70000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(i / 10) + static_cast<double>(random() % 50);
  const MinMaxTree ints(to(Tensor::from(values), DType::i32), Precision::kF32);
  const MinMaxTree floats(Tensor::from(values), Precision::kF64);
  for (int i = 0; i < 300; ++i) {
    auto first = static_cast<std::int64_t>(random() % values.size());
    auto last = static_cast<std::int64_t>(random() % values.size());
    if (first > last) std::swap(first, last);
    expect_same(ints.query(first, last), brute_force(values, first, last, false));
    expect_same(floats.query(first, last), brute_force(values, first, last, true));
  }
}

TEST(MinMaxTree, ReadsViewsInRowMajorOrder) {
  const Tensor tensor = Tensor::from<std::int64_t>({0, 1, 2, 3, 4, 5}, {2, 3});
  const MinMaxTree tree(tensor.view().transpose(0, 1), Precision::kF32);  // 0 3 1 4 2 5
  expect_same(tree.query(1, 1), Interval::ints(3, 3));
  expect_same(tree.query(2, 3), Interval::ints(1, 4));
  expect_same(tree.query(4, 5), Interval::ints(2, 5));
}

TEST(MinMaxTree, IsASnapshot) {
  Tensor tensor = Tensor::from<std::int64_t>({1, 2, 3});
  const MinMaxTree tree(tensor.view(), Precision::kF32);
  tensor.at<std::int64_t>({1}) = 99;
  expect_same(tree.query(0, 2), Interval::ints(1, 3));
}

TEST(MinMaxTree, FloatsAreRoundedToThePrecision) {
  const Tensor tensor = Tensor::from<double>({0.1, 1e300, -1e-60});
  const MinMaxTree f32(tensor, Precision::kF32), f64(tensor, Precision::kF64);
  expect_same(f32.query(0, 0), Interval::floats(0.1f, 0.1f));
  expect_same(f32.query(1, 1), Interval::floats(kInf, kInf));
  expect_same(f32.query(2, 2), Interval::floats(0, 0));
  expect_same(f64.query(0, 1), Interval::floats(0.1, 1e300));
}

TEST(MinMaxTree, LimitsInfinitiesAndNothingButNan) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const MinMaxTree ints(Tensor::from<std::int64_t>({kMax, kMax, kMin}), Precision::kF32);
  expect_same(ints.query(0, 1), Interval::ints(kMax, kMax));
  expect_same(ints.query(0, 2), Interval::ints(kMin, kMax));
  std::vector<double> values(40, kNan);
  values[37] = -kInf;
  const MinMaxTree floats(Tensor::from(values), Precision::kF64);
  expect_same(floats.query(0, 36), Interval::any_float());
  expect_same(floats.query(0, 37), Interval::floats(-kInf, -kInf, true));
  expect_same(floats.query(37, 37), Interval::floats(-kInf, -kInf));
}

TEST(MinMaxTree, ForeignBoolsAreZeroOrOne) {
  const std::vector<std::uint8_t> bytes = {0, 1, 7, 255};
  const MinMaxTree tree(ConstTensorView(bytes.data(), DType::boolean, {4}), Precision::kF32);
  expect_same(tree.query(2, 3), Interval::ints(1, 1));
  expect_same(tree.query(0, 3), Interval::ints(0, 1));
}

}  // namespace
}  // namespace quire::formula
