// Views: construction and its checks, access to elements, contiguity.
#include "quire/tensor_view.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "tests/support/expect_error.h"

namespace quire {
namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

class TensorViewTest : public ::testing::Test {
 protected:
  TensorViewTest() { std::iota(values_.begin(), values_.end(), 0.0f); }

  std::vector<float> values_ = std::vector<float>(24);
  TensorView view_{values_.data(), DType::f32, {2, 3, 4}};
};

TEST_F(TensorViewTest, KnowsItsShape) {
  EXPECT_EQ(view_.rank(), 3u);
  EXPECT_EQ(view_.numel(), 24);
  EXPECT_EQ(view_.strides(), (Shape{12, 4, 1}));
  EXPECT_EQ(view_.dim(0), 2);
  EXPECT_EQ(view_.dim(-1), 4);
  EXPECT_EQ(view_.stride(-2), 4);
  EXPECT_TRUE(view_.is_contiguous());
}

TEST_F(TensorViewTest, ReadsAndWritesElements) {
  EXPECT_EQ(view_.at<float>({1, 2, 3}), 23);
  EXPECT_EQ(view_.at<float>({-1, -1, -1}), 23);
  view_.at<float>({0, 1, 0}) = 100;
  EXPECT_EQ(values_[4], 100);
  const ConstTensorView constant = view_;
  static_assert(std::is_same_v<decltype(constant.at<float>({0})), const float&>);
  static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);
  EXPECT_EQ(constant.at<float>({0, 1, 0}), 100);
}

TEST_F(TensorViewTest, ChecksIndices) {
  testing::expect_error(ErrorKind::index, "[TensorView] shape [2, 3, 4] needs 3 indices; got 2",
                        [&] {
                          view_.at<float>({0, 0});
                        });
  testing::expect_error(ErrorKind::index,
                        "[TensorView] index is out of range for axis 1 of shape [2, 3, 4]; got 3",
                        [&] {
                          view_.at<float>({0, 3, 0});
                        });
  EXPECT_THROW(view_.at<float>({0, 0, -5}), Error);
  EXPECT_THROW(view_.load_float({std::numeric_limits<int64_t>::min(), 0, 0}), Error);
  testing::expect_error(ErrorKind::index,
                        "[TensorView] axis is out of range for shape [2, 3, 4]; got -4",
                        [&] { view_.dim(-4); });
}

TEST_F(TensorViewTest, ChecksTheType) {
  testing::expect_error(ErrorKind::type, "[TensorView] elements are f32; asked for i32", [&] {
    view_.at<int32_t>({0, 0, 0});
  });
  testing::expect_error(ErrorKind::type, "[TensorView] elements are f32; asked for an integer",
                        [&] {
                          view_.load_int({0, 0, 0});
                        });
}

TEST(TensorView, RankZero) {
  double value = 2.5;
  const TensorView view(&value, DType::f64, {});
  EXPECT_EQ(view.numel(), 1);
  EXPECT_EQ(view.at<double>({}), 2.5);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_THROW(view.dim(0), Error);
}

TEST(TensorView, DefaultIsEmpty) {
  const ConstTensorView view;
  EXPECT_EQ(view.numel(), 0);
  EXPECT_EQ(view.shape(), Shape{0});
  EXPECT_THROW(view.load_float({0}), Error);
}

TEST(TensorView, StridesOfEitherSignAndZero) {
  const std::vector<int16_t> values = {0, 1, 2, 3, 4, 5};
  const ConstTensorView reversed(&values[5], DType::i16, {6}, {-1});
  EXPECT_EQ(reversed.load_int({0}), 5);
  EXPECT_EQ(reversed.load_int({5}), 0);
  EXPECT_FALSE(reversed.is_contiguous());
  const ConstTensorView repeated(&values[3], DType::i16, {4, 2}, {0, 1});
  EXPECT_EQ(repeated.load_int({3, 1}), 4);
  EXPECT_EQ(repeated.numel(), 8);
}

TEST(TensorView, StrideOfAnAxisOfOneDoesNotCount) {
  const std::vector<float> values(6);
  EXPECT_TRUE(ConstTensorView(values.data(), DType::f32, {1, 6, 1}, {-99, 1, 42}).is_contiguous());
  EXPECT_FALSE(ConstTensorView(values.data(), DType::f32, {2, 3}, {1, 2}).is_contiguous());
}

TEST(TensorView, LoadsEveryDtype) {
  const float f32 = 1.5f;
  const double f64 = -0.1;
  const BFloat16 bf16(3.0);
  const Float16 f16(0.25);
  const int8_t i8 = -7;
  const uint8_t u8 = 200;
  const int16_t i16 = -300;
  const int32_t i32 = 70000;
  const int64_t i64 = -(int64_t{1} << 60) - 1;
  const uint8_t boolean = 2;  // a foreign "true"
  EXPECT_EQ(ConstTensorView(&f32, DType::f32, {}).load_float({}), 1.5);
  EXPECT_EQ(ConstTensorView(&f64, DType::f64, {}).load_float({}), -0.1);
  EXPECT_EQ(ConstTensorView(&bf16, DType::bf16, {}).load_float({}), 3);
  EXPECT_EQ(ConstTensorView(&f16, DType::f16, {}).load_float({}), 0.25);
  EXPECT_EQ(ConstTensorView(&i8, DType::i8, {}).load_int({}), -7);
  EXPECT_EQ(ConstTensorView(&u8, DType::u8, {}).load_int({}), 200);
  EXPECT_EQ(ConstTensorView(&i16, DType::i16, {}).load_int({}), -300);
  EXPECT_EQ(ConstTensorView(&i32, DType::i32, {}).load_int({}), 70000);
  EXPECT_EQ(ConstTensorView(&i64, DType::i64, {}).load_int({}), i64);
  EXPECT_EQ(ConstTensorView(&boolean, DType::boolean, {}).load_int({}), 1);
  EXPECT_EQ(ConstTensorView(&boolean, DType::boolean, {}).load_float({}), 1);
  EXPECT_EQ(ConstTensorView(&i32, DType::i32, {}).load_float({}), 70000);
}

TEST(TensorView, RefusesBadShapes) {
  float value = 0;
  testing::expect_error(ErrorKind::value, "[Shape] sizes must not be negative; got [2, -3]", [&] {
    TensorView(&value, DType::f32, {2, -3});
  });
  testing::expect_error(
      ErrorKind::value,
      "[TensorView] shape and strides must have the same rank; got [2, 3] and [1]", [&] {
        TensorView(&value, DType::f32, {2, 3}, {1});
      });
  testing::expect_error(ErrorKind::value, "[TensorView] data must not be null; got shape [2]",
                        [] { TensorView(nullptr, DType::f32, {2}); });
  EXPECT_EQ(TensorView(nullptr, DType::f32, {2, 0}).numel(), 0);
}

TEST(TensorView, RefusesWhatNoAddressCanReach) {
  float value = 0;
  testing::expect_error(ErrorKind::value,
                        "[TensorView] shape [4611686018427387904] with strides [1] does not fit "
                        "into memory",
                        [&] { TensorView(&value, DType::f32, {kHuge}); });
  EXPECT_THROW(TensorView(&value, DType::f32, {3}, {kHuge}), Error);
  EXPECT_THROW(TensorView(&value, DType::f32, {3}, {-kHuge}), Error);
  EXPECT_THROW(TensorView(&value, DType::f32, {2, 2}, {kHuge, kHuge}), Error);
  EXPECT_THROW(TensorView(&value, DType::f32, {2}, {std::numeric_limits<int64_t>::min()}), Error);
  EXPECT_THROW(TensorView(&value, DType::f32, {kHuge, 4}, {0, 0}), Error);
  // Far apart on paper only.
  EXPECT_EQ(TensorView(&value, DType::f32, {kHuge}, {0}).numel(), kHuge);
  EXPECT_EQ(TensorView(&value, DType::f32, {1, 0}, {kHuge, kHuge}).numel(), 0);
}

}  // namespace
}  // namespace quire
