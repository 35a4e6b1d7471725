// Shapes: rank limit, printing, counting with overflow, strides, insert and erase.
#include "quire/shape.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/expect_error.h"

namespace quire {
namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

TEST(Shape, HoldsUpToEight) {
  EXPECT_EQ(Shape().rank(), 0u);
  EXPECT_EQ(Shape({1, 2, 3, 4, 5, 6, 7, 8})[7], 8);
  testing::expect_error(ErrorKind::value, "[Shape] rank must be at most 8; got 9", [] {
    Shape({1, 2, 3, 4, 5, 6, 7, 8, 9});
  });
  Shape full{1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_THROW(full.push_back(1), Error);
  EXPECT_EQ(full.rank(), 8u);
}

TEST(Shape, ComparesAndPrints) {
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ((Shape{2, 3}), Shape(std::vector<int64_t>{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 0}));
}

TEST(Shape, InsertsAndErases) {
  Shape shape{2, 3};
  shape.insert(0, 1);
  shape.insert(3, 4);
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4}));
  shape.erase(1);
  EXPECT_EQ(shape, (Shape{1, 3, 4}));
  shape.erase(2);
  shape.push_back(9);
  EXPECT_EQ(shape, (Shape{1, 3, 9}));
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 4}), 24);
  EXPECT_EQ(element_count({2, 0, 4}), 0);
  EXPECT_EQ(element_count({kHuge, 1}), kHuge);
}

TEST(Shape, RefusesNegativeAndTooMany) {
  testing::expect_error(ErrorKind::value, "[Shape] sizes must not be negative; got [2, -1]", [] {
    element_count({2, -1});
  });
  testing::expect_error(ErrorKind::value, "[Shape] too many elements; got [4611686018427387904, 2]",
                        [] {
                          element_count({kHuge, 2});
                        });
  // Not hidden by a 0: the strides would overflow all the same.
  EXPECT_THROW(element_count({0, kHuge, 2}), Error);
}

TEST(Shape, RowMajorStrides) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Shape{4, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Shape{});
}

}  // namespace
}  // namespace quire
