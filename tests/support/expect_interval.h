// Asserts what an interval is, exactly. Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>

#include "formula/bound/interval.h"

namespace quire::testing {

inline void expect_ints(const formula::Interval& r, std::int64_t lo, std::int64_t hi) {
  EXPECT_EQ(r.type, ValueType::kInt);
  EXPECT_EQ(r.int_lo, lo);
  EXPECT_EQ(r.int_hi, hi);
}

inline void expect_floats(const formula::Interval& r, double lo, double hi, bool nan = false) {
  EXPECT_EQ(r.type, ValueType::kFloat);
  EXPECT_EQ(r.float_lo, lo);
  EXPECT_EQ(r.float_hi, hi);
  EXPECT_EQ(r.maybe_nan, nan);
}

inline void expect_bools(const formula::Interval& r, bool can_be_false, bool can_be_true) {
  EXPECT_EQ(r.type, ValueType::kBool);
  EXPECT_EQ(r.can_be_false, can_be_false);
  EXPECT_EQ(r.can_be_true, can_be_true);
}

}  // namespace quire::testing
