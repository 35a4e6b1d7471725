// Views made from views. Every operation is compared element by element with index arithmetic
// written out here.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "quire/tensor_view.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Elements in row-major order.
std::vector<int64_t> flat(const ConstTensorView& view) {
  std::vector<int64_t> result;
  if (view.rank() == 0) return {view.load_int({})};
  for (int64_t i = 0; i < view.dim(0); ++i) {
    const auto part = flat(view.select(0, i));
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

class ViewShapesTest : public ::testing::Test {
 protected:
  ViewShapesTest() { std::iota(values_.begin(), values_.end(), 0); }

  std::vector<int32_t> values_ = std::vector<int32_t>(24);
  ConstTensorView view_{values_.data(), DType::i32, {2, 3, 4}};
};

TEST_F(ViewShapesTest, Slice) {
  const auto middle = view_.slice(1, 1, 3);
  EXPECT_EQ(middle.shape(), (Shape{2, 2, 4}));
  EXPECT_EQ(middle.load_int({1, 0, 2}), 12 + 4 + 2);
  const auto stepped = view_.slice(-1, 0, 4, 3);
  EXPECT_EQ(stepped.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(stepped.load_int({0, 2, 1}), 8 + 3);
  EXPECT_EQ(flat(view_.slice(0, -1, 2).slice(1, -3, -2)), (std::vector<int64_t>{12, 13, 14, 15}));
}

TEST_F(ViewShapesTest, EmptySlicesAndHugeSteps) {
  EXPECT_EQ(view_.slice(1, 3, 3).numel(), 0);
  EXPECT_EQ(view_.slice(1, 0, 0).shape(), (Shape{2, 0, 4}));
  EXPECT_EQ(view_.slice(1, 3, 3).slice(0, 1, 2).numel(), 0);
  EXPECT_EQ(flat(view_.slice(0, 0, 2, kMax).select(0, 0).select(0, 0)),
            (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST_F(ViewShapesTest, SliceRefusesWhatIsOutside) {
  testing::expect_error(
      ErrorKind::index,
      "[TensorView] slice is out of range for axis 1 of shape [2, 3, 4]; got 2:1:1",
      [&] { view_.slice(1, 2, 1); });
  EXPECT_THROW(view_.slice(1, 0, 4), Error);
  EXPECT_THROW(view_.slice(1, -4, 2), Error);
  EXPECT_THROW(view_.slice(1, 0, 3, 0), Error);
  EXPECT_THROW(view_.slice(1, 0, 3, -1), Error);
  EXPECT_THROW(view_.slice(1, kMin, kMax), Error);
  EXPECT_THROW(view_.slice(3, 0, 1), Error);
}

TEST_F(ViewShapesTest, Select) {
  EXPECT_EQ(view_.select(1, 2).shape(), (Shape{2, 4}));
  EXPECT_EQ(flat(view_.select(0, -1).select(1, 0)), (std::vector<int64_t>{12, 16, 20}));
  EXPECT_EQ(view_.select(0, 1).select(0, 2).select(0, 3).load_int({}), 23);
  testing::expect_error(ErrorKind::index,
                        "[TensorView] index is out of range for axis 2 of shape [2, 3, 4]; got 4",
                        [&] { view_.select(-1, 4); });
}

TEST_F(ViewShapesTest, TransposeAndPermute) {
  EXPECT_EQ(view_.transpose(0, -1).shape(), (Shape{4, 3, 2}));
  EXPECT_EQ(view_.transpose(0, -1).load_int({3, 1, 1}), 12 + 4 + 3);
  const auto permuted = view_.permute({1, 2, 0});
  EXPECT_EQ(permuted.shape(), (Shape{3, 4, 2}));
  EXPECT_EQ(permuted.load_int({2, 3, 1}), 23);
  EXPECT_EQ(view_.permute({-1, 0, 1}).shape(), (Shape{4, 2, 3}));
  testing::expect_error(
      ErrorKind::value,
      "[TensorView] permute needs each axis of shape [2, 3, 4] once; got [0, 1, 1]", [&] {
        view_.permute({0, 1, 1});
      });
  EXPECT_THROW(view_.permute({0, 1}), Error);
  EXPECT_THROW(view_.permute({0, 1, 2, 0, 0, 0, 0, 0, 0}), Error);
  EXPECT_THROW(view_.permute({0, 1, 3}), Error);
}

TEST_F(ViewShapesTest, Expand) {
  const auto row = view_.select(0, 0).slice(0, 1, 2);  // [1, 4]
  const auto wide = row.expand({2, 3, 4});
  EXPECT_EQ(wide.strides(), (Shape{0, 0, 1}));
  EXPECT_EQ(wide.load_int({1, 2, 3}), 7);
  EXPECT_EQ(row.expand({0, 4}).numel(), 0);
  testing::expect_error(ErrorKind::value,
                        "[TensorView] shape [2, 3, 4] cannot be expanded to [2, 6, 4]", [&] {
                          view_.expand({2, 6, 4});
                        });
  EXPECT_THROW(view_.expand({3, 4}), Error);
  EXPECT_THROW(row.expand({-1, 4}), Error);
  EXPECT_THROW(row.expand({kMax, 4}), Error);
}

TEST_F(ViewShapesTest, Unsqueeze) {
  EXPECT_EQ(view_.unsqueeze(0).shape(), (Shape{1, 2, 3, 4}));
  EXPECT_EQ(view_.unsqueeze(-1).shape(), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(view_.unsqueeze(1).load_int({1, 0, 2, 3}), 23);
  EXPECT_THROW(view_.unsqueeze(4), Error);
  EXPECT_THROW(view_.unsqueeze(-5), Error);
}

TEST_F(ViewShapesTest, Reshape) {
  EXPECT_EQ(view_.reshape({24}).strides(), (Shape{1}));
  EXPECT_EQ(view_.reshape({4, -1}).shape(), (Shape{4, 6}));
  EXPECT_EQ(view_.reshape({1, 6, 1, 4, 1}).load_int({0, 5, 0, 3, 0}), 23);
  EXPECT_EQ(view_.select(0, 0).select(0, 0).slice(0, 2, 3).reshape({}).load_int({}), 2);
  // A gap between rows stays a gap: only axes within a row may be split or joined.
  const auto rows = view_.slice(2, 0, 2);  // [2, 3, 2], strides 12 4 1
  EXPECT_EQ(rows.reshape({6, 2}).strides(), (Shape{4, 1}));
  EXPECT_EQ(rows.reshape({6, 1, 2, 1}).load_int({5, 0, 1, 0}), 21);
  testing::expect_error(
      ErrorKind::value,
      "[TensorView] shape [2, 3, 2] with strides [12, 4, 1] cannot be reshaped to "
      "[12] without a copy",
      [&] { rows.reshape({12}); });
  testing::expect_error(ErrorKind::value,
                        "[TensorView] shape [2, 3, 4] cannot be reshaped to [5, 5]: the number of "
                        "elements differs",
                        [&] {
                          view_.reshape({5, 5});
                        });
  EXPECT_THROW(view_.reshape({-1, -1}), Error);
  EXPECT_THROW(view_.reshape({7, -1}), Error);
}

TEST_F(ViewShapesTest, ReshapeOfNothing) {
  const auto nothing = view_.slice(1, 0, 0);
  EXPECT_EQ(nothing.reshape({0, 5}).shape(), (Shape{0, 5}));
  EXPECT_EQ(nothing.reshape({8, -1}).shape(), (Shape{8, 0}));
  EXPECT_THROW(nothing.reshape({0, -1}), Error);
  EXPECT_THROW(nothing.reshape({1}), Error);
}

// Random permutations, slices and broadcasts, reshaped: where reshape succeeds the order of
// elements is kept; where the view is contiguous it must succeed.
TEST_F(ViewShapesTest, ReshapeKeepsTheOrder) {
  std::mt19937 random(3);
  const std::vector<Shape> wanted = {{24}, {2, 12}, {12, 2},      {6, 4},    {2, 3, 4}, {3, 8},
                                     {12}, {3, 4},  {2, 2, 3, 2}, {1, 8, 3}, {48},      {4, 3, 4}};
  int succeeded = 0;
  for (int i = 0; i < 3000; ++i) {
    ConstTensorView view = view_;
    if (random() % 2) view = view.transpose(random() % 3, random() % 3);
    const int64_t axis = random() % 3;
    if (random() % 2) view = view.slice(axis, random() % 2, view.dim(axis), 1 + random() % 2);
    if (random() % 4 == 0) {
      Shape shape = view.shape();
      shape.insert(0, 2);
      view = view.expand(shape);
    }
    for (const Shape& shape : wanted) {
      if (element_count(shape) != view.numel()) continue;
      try {
        const ConstTensorView reshaped = view.reshape(shape);
        ASSERT_EQ(flat(reshaped), flat(view)) << to_string(view.shape()) << to_string(shape);
        ++succeeded;
      } catch (const Error&) {
        ASSERT_FALSE(view.is_contiguous());
      }
    }
    ASSERT_EQ(flat(view.reshape(view.shape())), flat(view));
  }
  EXPECT_GT(succeeded, 1000);
}

}  // namespace
}  // namespace quire
