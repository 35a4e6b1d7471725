// One row: values, huge scores, and the corners.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/scores.h"

namespace quire::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(RowSoftmax, Values) {
  const std::vector<double> scores{std::log(1.0), -kInf, std::log(3.0)};
  const RowSoftmax row = row_softmax(scores);
  EXPECT_NEAR(row.p[0], 0.25, 1e-15);
  EXPECT_EQ(row.p[1], 0);
  EXPECT_NEAR(row.p[2], 0.75, 1e-15);
  EXPECT_EQ(row.max, std::log(3.0));
  EXPECT_NEAR(row.lse, std::log(4.0), 1e-15);
}

TEST(RowSoftmax, HugeScores) {
  for (const double offset : {1e6, -1e6}) {
    const std::vector<double> scores{offset, offset};
    const RowSoftmax row = row_softmax(scores);
    EXPECT_EQ(row.p[0], 0.5);
    EXPECT_DOUBLE_EQ(row.lse, offset + std::log(2.0));
  }
}

TEST(RowSoftmax, NothingToAttendTo) {
  for (const std::size_t keys : {0, 1, 3}) {
    const RowSoftmax row = row_softmax(std::vector<double>(keys, -kInf));
    EXPECT_EQ(row.p, std::vector<double>(keys, 0));
    EXPECT_EQ(row.max, -kInf);
    EXPECT_EQ(row.lse, -kInf);
  }
}

TEST(RowSoftmax, NaNAndInfinityMakeVisibleKeysNaN) {
  for (const double bad : {kNaN, kInf}) {
    for (const std::size_t place : {0, 2}) {
      std::vector<double> scores{1, -kInf, 2};
      scores[place] = bad;
      const RowSoftmax row = row_softmax(scores);
      EXPECT_TRUE(std::isnan(row.p[0]));
      EXPECT_EQ(row.p[1], 0) << "a hidden key stays out";
      EXPECT_TRUE(std::isnan(row.p[2]));
      EXPECT_TRUE(std::isnan(row.lse));
      EXPECT_EQ(std::isnan(row.max), std::isnan(bad));
      if (!std::isnan(bad)) {
        EXPECT_EQ(row.max, kInf);
      }
    }
  }
}

}  // namespace
}  // namespace quire::reference
