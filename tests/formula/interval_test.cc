// The interval rules of integer operations, of comparisons, logic, casts and choice: soundness over
// corner values against the operations' meaning, and how tight they are where that matters.
#include "formula/bound/interval.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "formula/bound/interval_rules.h"
#include "reference/arithmetic.h"
#include "tests/support/expect_interval.h"

namespace quire::formula {
namespace {

using testing::expect_bools;
using testing::expect_floats;
using testing::expect_ints;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Precision kF32 = Precision::kF32;

Interval ints(std::int64_t lo, std::int64_t hi) { return Interval::ints(lo, hi); }
Interval floats(double lo, double hi, bool nan = false) { return Interval::floats(lo, hi, nan); }
Interval binary(Op op, const Interval& a, const Interval& b) {
  return bound_int_binary(op, a, b, false);
}

constexpr Op kIntBinaries[] = {Op::kAdd,    Op::kSub,   Op::kMul,   Op::kFloorDiv, Op::kMod,
                               Op::kPow,    Op::kMin,   Op::kMax,   Op::kShl,      Op::kShr,
                               Op::kBitAnd, Op::kBitOr, Op::kBitXor};
constexpr Op kIntUnaries[] = {Op::kNeg, Op::kAbs, Op::kSign, Op::kBitNot};

// Every interval between two of the values, every pair of values inside.
template <class Check>
void for_all_intervals(const std::vector<std::int64_t>& values, Check check) {
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = i; j < values.size(); ++j) check(i, j, ints(values[i], values[j]));
}

void check_int_rules(const std::vector<std::int64_t>& values) {
  for_all_intervals(values, [&](std::size_t a0, std::size_t a1, const Interval& a) {
    for (const Op op : kIntUnaries) {
      const Interval r = bound_int_unary(op, a);
      for (std::size_t i = a0; i <= a1; ++i)
        ASSERT_TRUE(r.contains_int(reference::int_unary(op, values[i])))
            << static_cast<int>(op) << " of " << values[i] << " in " << a.int_lo << ".."
            << a.int_hi;
    }
    for_all_intervals(values, [&](std::size_t b0, std::size_t b1, const Interval& b) {
      for (const Op op : kIntBinaries) {
        const Interval r = binary(op, a, b);
        ASSERT_LE(r.int_lo, r.int_hi);
        for (std::size_t i = a0; i <= a1; ++i)
          for (std::size_t j = b0; j <= b1; ++j)
            ASSERT_TRUE(r.contains_int(reference::int_binary(op, values[i], values[j])))
                << static_cast<int>(op) << " of " << values[i] << " in " << a.int_lo << ".."
                << a.int_hi << " and " << values[j] << " in " << b.int_lo << ".." << b.int_hi;
      }
    });
    for (const Op op : kIntBinaries) {
      const Interval r = bound_int_binary(op, a, a, true);
      for (std::size_t i = a0; i <= a1; ++i)
        ASSERT_TRUE(r.contains_int(reference::int_binary(op, values[i], values[i])))
            << static_cast<int>(op) << " of " << values[i] << " with itself";
    }
  });
}

TEST(IntervalInt, SoundAtTheLimits) {
  check_int_rules({kMin, kMin + 1, -(kMax / 2), -65, -2, -1, 0, 1, 2, 63, 64, kMax / 2, kMax});
}

TEST(IntervalInt, SoundForSmallNumbers) { check_int_rules({-7, -4, -3, -1, 0, 1, 2, 3, 4, 6, 8}); }

// All intervals within -5..5: the result is the hull of all results, no wider.
TEST(IntervalInt, ExactForSmallNumbers) {
  const auto exact = [](Op op, const Interval& a, const Interval& b) {
    Interval r = ints(kMax, kMin);
    for (std::int64_t x = a.int_lo; x <= a.int_hi; ++x)
      for (std::int64_t y = b.int_lo; y <= b.int_hi; ++y)
        r = hull(r, ints(reference::int_binary(op, x, y), reference::int_binary(op, x, y)));
    return r;
  };
  std::vector<std::int64_t> values;
  for (std::int64_t i = -5; i <= 5; ++i) values.push_back(i);
  for_all_intervals(values, [&](std::size_t, std::size_t, const Interval& a) {
    for_all_intervals(values, [&](std::size_t, std::size_t, const Interval& b) {
      for (const Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kFloorDiv, Op::kMin, Op::kMax, Op::kShr,
                          Op::kShl, Op::kMod}) {
        if (op == Op::kMod && !b.is_single_int()) continue;
        const Interval want = exact(op, a, b), got = binary(op, a, b);
        // Shifting 0 left by a count outside 0..63 and by one inside gives 0 alike.
        ASSERT_EQ(got.int_lo, want.int_lo) << static_cast<int>(op) << " " << a.int_lo << ".."
                                           << a.int_hi << " " << b.int_lo << ".." << b.int_hi;
        ASSERT_EQ(got.int_hi, want.int_hi) << static_cast<int>(op) << " " << a.int_lo << ".."
                                           << a.int_hi << " " << b.int_lo << ".." << b.int_hi;
      }
    });
  });
}

TEST(IntervalInt, WhatCouldWrapIsAnyInt) {
  expect_ints(binary(Op::kAdd, ints(0, kMax - 5), ints(0, 5)), 0, kMax);
  expect_ints(binary(Op::kAdd, ints(0, kMax - 5), ints(0, 6)), kMin, kMax);
  expect_ints(binary(Op::kSub, ints(-2, 0), ints(0, kMax)), kMin, kMax);
  expect_ints(binary(Op::kMul, ints(0, std::int64_t{1} << 32), ints(0, std::int64_t{1} << 31)),
              kMin, kMax);
  expect_ints(binary(Op::kMul, ints(0, std::int64_t{1} << 31), ints(0, std::int64_t{1} << 31)), 0,
              std::int64_t{1} << 62);
  expect_ints(binary(Op::kFloorDiv, ints(kMin, 0), ints(-1, -1)), kMin, kMax);
  expect_ints(binary(Op::kFloorDiv, ints(kMin, 0), ints(-2, -2)), 0, std::int64_t{1} << 62);
  expect_ints(binary(Op::kShl, ints(0, 1), ints(62, 62)), 0, std::int64_t{1} << 62);
  expect_ints(binary(Op::kShl, ints(0, 2), ints(62, 62)), kMin, kMax);
  expect_ints(binary(Op::kPow, ints(2, 3), ints(1, 40)), kMin, kMax);
  expect_ints(bound_int_unary(Op::kNeg, ints(kMin, 0)), kMin, kMax);
  expect_ints(bound_int_unary(Op::kNeg, ints(kMin, kMin)), kMin, kMin);
  expect_ints(bound_int_unary(Op::kAbs, ints(kMin, 3)), kMin, kMax);
  expect_ints(bound_int_unary(Op::kAbs, ints(-7, 3)), 0, 7);
  expect_ints(bound_int_unary(Op::kBitNot, ints(kMin, kMax - 1)), kMin + 1, kMax);
}

TEST(IntervalInt, RemaindersWithinOnePeriodAreExact) {
  expect_ints(binary(Op::kMod, ints(64, 70), ints(64, 64)), 0, 6);
  expect_ints(binary(Op::kMod, ints(60, 70), ints(64, 64)), 0, 63);
  expect_ints(binary(Op::kMod, ints(-70, -65), ints(64, 64)), 58, 63);
  expect_ints(binary(Op::kMod, ints(-70, -65), ints(-64, -64)), -6, -1);
  expect_ints(binary(Op::kMod, ints(-70, 65), ints(-64, -64)), -63, 0);
  expect_ints(binary(Op::kMod, ints(3, 9), ints(10, 20)), 3, 9);
  expect_ints(binary(Op::kMod, ints(3, 9), ints(7, 20)), 0, 9);
  expect_ints(binary(Op::kMod, ints(3, 99), ints(0, 20)), 0, 19);
  expect_ints(binary(Op::kMod, ints(3, 9), ints(0, 0)), 0, 0);
}

TEST(IntervalInt, PowersOfIntervals) {
  expect_ints(binary(Op::kPow, ints(2, 3), ints(2, 4)), 4, 81);
  expect_ints(binary(Op::kPow, ints(-3, 2), ints(3, 3)), -27, 27);
  expect_ints(binary(Op::kPow, ints(0, 0), ints(0, 5)), 0, 1);
  expect_ints(binary(Op::kPow, ints(2, 9), ints(-5, -1)), 0, 0);
  expect_ints(binary(Op::kPow, ints(-1, 1), ints(-5, -1)), -1, 1);
  expect_ints(binary(Op::kPow, ints(3, 3), ints(41, 41)), reference::int_binary(Op::kPow, 3, 41),
              reference::int_binary(Op::kPow, 3, 41));
}

TEST(IntervalInt, BitsSharedByAllValuesAreKnown) {
  expect_ints(binary(Op::kBitAnd, ints(64, 70), ints(63, 63)), 0, 7);
  expect_ints(binary(Op::kBitAnd, ints(0, 1000), ints(63, 63)), 0, 63);
  expect_ints(binary(Op::kBitAnd, ints(-8, 1000), ints(0, 5)), 0, 5);
  expect_ints(binary(Op::kBitOr, ints(16, 17), ints(4, 5)), 20, 21);
  expect_ints(binary(Op::kBitOr, ints(0, 9), ints(0, 3)), 0, 15);
  expect_ints(binary(Op::kBitOr, ints(5, 9), ints(0, 3)), 5, 15);
  expect_ints(binary(Op::kBitXor, ints(16, 19), ints(16, 17)), 0, 3);
  expect_ints(binary(Op::kBitXor, ints(-4, -1), ints(0, 0)), -4, -1);
  expect_ints(binary(Op::kBitAnd, ints(12, 12), ints(10, 10)), 8, 8);
  expect_ints(binary(Op::kBitXor, ints(-1, 0), ints(0, 7)), kMin, kMax);
}

TEST(IntervalInt, OneValueWithItself) {
  expect_ints(bound_int_binary(Op::kSub, ints(-3, 5), ints(-3, 5), true), 0, 0);
  expect_ints(bound_int_binary(Op::kMul, ints(-3, 5), ints(-3, 5), true), 0, 25);
  expect_ints(bound_int_binary(Op::kMul, ints(-3, -2), ints(-3, -2), true), 4, 9);
  expect_ints(bound_int_binary(Op::kBitXor, ints(-3, 5), ints(-3, 5), true), 0, 0);
  expect_bools(bound_compare(Op::kLe, ints(-3, 5), ints(-3, 5), true), false, true);
  expect_bools(bound_compare(Op::kNe, ints(-3, 5), ints(-3, 5), true), true, false);
  expect_bools(bound_compare(Op::kEq, floats(0, 1), floats(0, 1), true), false, true);
  expect_bools(bound_compare(Op::kEq, floats(0, 1, true), floats(0, 1, true), true), true, true);
  expect_bools(bound_compare(Op::kLt, floats(0, 1, true), floats(0, 1, true), true), true, false);
  expect_bools(bound_compare(Op::kNe, floats(0, 1, true), floats(0, 1, true), true), true, true);
}

// ---- logic, comparisons, casts, choice

TEST(IntervalLogic, ThreeValued) {
  const Interval no = Interval::bools(true, false), yes = Interval::bools(false, true),
                 any = Interval::any_bool();
  for (const Interval& a : {no, yes, any}) {
    for (const Interval& b : {no, yes, any}) {
      for (const Op op : {Op::kAnd, Op::kOr, Op::kXor}) {
        bool can[2] = {false, false};
        for (const bool x : {false, true})
          for (const bool y : {false, true})
            if (a.contains_bool(x) && b.contains_bool(y))
              can[op == Op::kAnd ? x && y : op == Op::kOr ? x || y : x != y] = true;
        expect_bools(bound_logic(op, a, b), can[0], can[1]);
      }
    }
  }
  expect_bools(bound_not(no), false, true);
  expect_bools(bound_not(any), true, true);
}

TEST(IntervalLogic, Comparisons) {
  std::vector<std::int64_t> values = {-2, -1, 0, 1, 2};
  for_all_intervals(values, [&](std::size_t a0, std::size_t a1, const Interval& a) {
    for_all_intervals(values, [&](std::size_t b0, std::size_t b1, const Interval& b) {
      for (const Op op : {Op::kLt, Op::kLe, Op::kGt, Op::kGe, Op::kEq, Op::kNe}) {
        bool can[2] = {false, false};
        for (std::size_t i = a0; i <= a1; ++i)
          for (std::size_t j = b0; j <= b1; ++j)
            can[reference::compare(op, values[i], values[j])] = true;
        expect_bools(bound_compare(op, a, b, false), can[0], can[1]);
        const Interval x = bound_cast(a, ValueType::kFloat, kF32),
                       y = bound_cast(b, ValueType::kFloat, kF32);
        expect_bools(bound_compare(op, x, y, false), can[0], can[1]);
      }
    });
  });
  expect_bools(bound_compare(Op::kLt, floats(0, 1, true), floats(2, 3), false), true, true);
  expect_bools(bound_compare(Op::kGt, floats(0, 1, true), floats(2, 3), false), true, false);
  expect_bools(bound_compare(Op::kNe, floats(1, 1, true), floats(1, 1), false), true, true);
  expect_bools(bound_compare(Op::kEq, floats(-0.0, -0.0), floats(0, 0), false), false, true);
}

TEST(IntervalLogic, Casts) {
  const auto cast = [](const Interval& a, ValueType to) { return bound_cast(a, to, kF32); };
  expect_ints(cast(floats(-2.7, 3.9), ValueType::kInt), -2, 3);
  expect_ints(cast(floats(5.5, 6, true), ValueType::kInt), 0, 6);
  expect_ints(cast(floats(-kInf, 1e30), ValueType::kInt), kMin, kMax);
  expect_ints(cast(floats(0x1p62, 0x1p63), ValueType::kInt), std::int64_t{1} << 62, kMax);
  expect_ints(cast(Interval::any_bool(), ValueType::kInt), 0, 1);
  expect_floats(cast(Interval::bools(false, true), ValueType::kFloat), 1, 1);
  expect_bools(cast(ints(0, 0), ValueType::kBool), true, false);
  expect_bools(cast(ints(-1, 3), ValueType::kBool), true, true);
  expect_bools(cast(ints(1, 3), ValueType::kBool), false, true);
  expect_bools(cast(floats(-0.0, 0), ValueType::kBool), true, false);
  expect_bools(cast(floats(0, 0, true), ValueType::kBool), true, true);
}

TEST(IntervalLogic, Choice) {
  const Interval any = Interval::any_bool();
  expect_ints(bound_where(Interval::bools(false, true), ints(1, 2), ints(8, 9)), 1, 2);
  expect_ints(bound_where(Interval::bools(true, false), ints(1, 2), ints(8, 9)), 8, 9);
  expect_ints(bound_where(any, ints(1, 2), ints(8, 9)), 1, 9);
  expect_floats(bound_where(any, floats(1, 2), floats(8, 9, true)), 1, 9, true);
  expect_bools(bound_where(any, Interval::bools(true, false), Interval::bools(true, false)), true,
               false);
  expect_ints(bound_clamp(ints(-9, 9), ints(0, 1), ints(3, 4)), 0, 4);
  expect_ints(bound_clamp(ints(7, 9), ints(5, 5), ints(2, 2)), 2, 2);  // low above high: high wins
  expect_floats(bound_clamp(floats(-9, 9, true), floats(0, 1), floats(3, 4)), 0, 4, true);
}

TEST(Interval, IndicesAndWidths) {
  EXPECT_TRUE(index_in_bounds(ints(-4, 3), 4));
  EXPECT_FALSE(index_in_bounds(ints(-5, 3), 4));
  EXPECT_FALSE(index_in_bounds(ints(0, 4), 4));
  EXPECT_FALSE(index_in_bounds(ints(0, 0), 0));
  EXPECT_TRUE(fits_int32(ints(-(std::int64_t{1} << 31), (std::int64_t{1} << 31) - 1)));
  EXPECT_FALSE(fits_int32(ints(0, std::int64_t{1} << 31)));
  EXPECT_FALSE(fits_int32(ints(-(std::int64_t{1} << 31) - 1, 0)));
}

}  // namespace
}  // namespace quire::formula
