// Tensor: alignment, zero fill, sharing and cloning, construction from values.
#include "quire/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/expect_error.h"

namespace quire {
namespace {

bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data()) % 64 == 0;
}

TEST(Tensor, IsZeroAndAligned) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const Tensor tensor({3, 5}, static_cast<DType>(i));
    EXPECT_TRUE(is_aligned(tensor));
    EXPECT_EQ(tensor.numel(), 15);
    EXPECT_TRUE(tensor.view().is_contiguous());
    for (int64_t j = 0; j < 15; ++j) EXPECT_EQ(tensor.view().load_float({j / 5, j % 5}), 0);
  }
}

TEST(Tensor, EmptyShapesHaveAnAddress) {
  for (const Shape& shape : {Shape{0}, Shape{4, 0, 2}}) {
    const Tensor tensor = Tensor::empty(shape, DType::f64);
    EXPECT_NE(tensor.data(), nullptr);
    EXPECT_TRUE(is_aligned(tensor));
    EXPECT_EQ(tensor.numel(), 0);
    EXPECT_EQ(tensor.clone().shape(), shape);
  }
  EXPECT_EQ(Tensor().shape(), Shape{0});
  EXPECT_EQ(Tensor({}, DType::i64).numel(), 1);
}

TEST(Tensor, FromValues) {
  const Tensor rows = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(rows.at<float>({1, 0}), 4);
  const Tensor flat = Tensor::from(std::vector<int64_t>{7, 8});
  EXPECT_EQ(flat.dtype(), DType::i64);
  EXPECT_EQ(flat.shape(), Shape{2});
  EXPECT_EQ(Tensor::from({1.5, 2.5}).dtype(), DType::f64);
  const Tensor flags = Tensor::from(std::vector<bool>{true, false, true, true}, {2, 2});
  EXPECT_EQ(flags.dtype(), DType::boolean);
  EXPECT_TRUE(flags.at<bool>({1, 0}));
  EXPECT_FALSE(flags.at<bool>({0, 1}));
  EXPECT_EQ(Tensor::from(std::vector<Float16>{Float16(2.0)}).view().load_float({0}), 2);
  EXPECT_EQ(Tensor::from(std::vector<float>{}).shape(), Shape{0});
}

TEST(Tensor, RefusesBadShapes) {
  testing::expect_error(ErrorKind::value, "[Tensor] shape [2, 2] needs 4 values; got 3", [] {
    Tensor::from<float>({1, 2, 3}, {2, 2});
  });
  testing::expect_error(ErrorKind::value, "[Shape] sizes must not be negative; got [-2]",
                        [] { Tensor({-2}, DType::f32); });
  testing::expect_error(ErrorKind::value,
                        "[Tensor] too many elements; got [4611686018427387904] of f32",
                        [] { Tensor({int64_t{1} << 62}, DType::f32); });
}

TEST(Tensor, CopiesShareAndClonesDoNot) {
  Tensor original = Tensor::from<int32_t>({1, 2});
  Tensor copy = original;
  Tensor cloned = original.clone();
  copy.at<int32_t>({0}) = 9;
  EXPECT_EQ(original.at<int32_t>({0}), 9);
  EXPECT_EQ(cloned.at<int32_t>({0}), 1);
  const Tensor reshaped = original.reshape({1, 2, 1});
  original.at<int32_t>({1}) = 5;
  EXPECT_EQ(reshaped.at<int32_t>({0, 1, 0}), 5);
}

TEST(Tensor, OutlivesTheOneItWasCopiedFrom) {
  Tensor copy;
  {
    const Tensor original = Tensor::from<float>({4, 5});
    copy = original;
  }
  EXPECT_EQ(copy.at<float>({1}), 5);
}

TEST(Tensor, IsAcceptedWhereAViewIsAskedFor) {
  const auto sum = [](const ConstTensorView& view) {
    double total = 0;
    for (int64_t i = 0; i < view.dim(0); ++i) total += view.load_float({i});
    return total;
  };
  EXPECT_EQ(sum(Tensor::from<uint8_t>({1, 2, 250})), 253);
  static_assert(!std::is_convertible_v<const Tensor&, TensorView>);
}

TEST(Tensor, ContiguousCopiesAnyView) {
  Tensor tensor = Tensor::from<int16_t>({0, 1, 2, 3, 4, 5}, {2, 3});
  const Tensor transposed = contiguous(tensor.view().transpose(0, 1));
  EXPECT_TRUE(transposed.view().is_contiguous());
  EXPECT_EQ(transposed.shape(), (Shape{3, 2}));
  EXPECT_EQ(transposed.at<int16_t>({2, 0}), 2);
  EXPECT_EQ(transposed.at<int16_t>({0, 1}), 3);
  const Tensor repeated = contiguous(tensor.view().slice(0, 1, 2).expand({3, 3}));
  EXPECT_EQ(repeated.at<int16_t>({2, 1}), 4);
  const ConstTensorView reversed(tensor.data_as<int16_t>() + 5, DType::i16, {2, 3}, {-3, -1});
  EXPECT_EQ(contiguous(reversed).at<int16_t>({0, 0}), 5);
}

}  // namespace
}  // namespace quire
