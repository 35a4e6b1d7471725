// Conversions between dtypes: every pair on small numbers, then the corners of each rule.
#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "quire/tensor.h"

namespace quire {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class To, class From>
To converted(From value) {
  return Tensor::from(std::vector<From>{value}).to(dtype_of<To>).template data_as<To>()[0];
}

TEST(Convert, EveryPairKeepsSmallNumbers) {
  const Tensor numbers = Tensor::from<int32_t>({0, 1, 2, 100, 127}, {5});
  for (int from = 0; from < kDTypeCount; ++from) {
    const Tensor source = numbers.to(static_cast<DType>(from));
    for (int to = 0; to < kDTypeCount; ++to) {
      const Tensor result = source.to(static_cast<DType>(to));
      const bool through_bool =
          source.dtype() == DType::boolean || result.dtype() == DType::boolean;
      for (int64_t i = 0; i < 5; ++i) {
        const int32_t number = numbers.at<int32_t>({i});
        EXPECT_EQ(result.view().load_float({i}), through_bool ? number != 0 : number);
      }
    }
  }
}

TEST(Convert, FloatToIntegerTruncatesAndSaturates) {
  EXPECT_EQ((converted<int32_t>(2.9)), 2);
  EXPECT_EQ((converted<int32_t>(-2.9)), -2);
  EXPECT_EQ((converted<int8_t>(127.9)), 127);
  EXPECT_EQ((converted<int8_t>(128.0)), 127);
  EXPECT_EQ((converted<int8_t>(-128.9)), -128);
  EXPECT_EQ((converted<int8_t>(-1e9)), -128);
  EXPECT_EQ((converted<uint8_t>(-0.9)), 0);
  EXPECT_EQ((converted<uint8_t>(-1.0)), 0);
  EXPECT_EQ((converted<uint8_t>(255.5)), 255);
  EXPECT_EQ((converted<uint8_t>(256.0)), 255);
  EXPECT_EQ((converted<int64_t>(9.3e18)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((converted<int64_t>(-9.3e18)), std::numeric_limits<int64_t>::min());
  EXPECT_EQ((converted<int64_t>(0x1.fffffffffffffp62)), 0x7ffffffffffffc00);
  EXPECT_EQ((converted<int64_t>(kInf)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((converted<int16_t>(-kInf)), std::numeric_limits<int16_t>::min());
  EXPECT_EQ((converted<int32_t>(kNan)), 0);
  EXPECT_EQ((converted<uint8_t>(Float16(kNan))), 0);
  EXPECT_EQ((converted<int16_t>(BFloat16(1e30))), 32767);
}

TEST(Convert, IntegerToNarrowerWraps) {
  EXPECT_EQ((converted<int8_t>(int32_t{200})), -56);
  EXPECT_EQ((converted<uint8_t>(int16_t{-1})), 255);
  EXPECT_EQ((converted<int32_t>(int64_t{1} << 32 | 5)), 5);
}

TEST(Convert, ToBool) {
  EXPECT_TRUE((converted<bool>(kNan)));
  EXPECT_TRUE((converted<bool>(1e-300)));
  EXPECT_TRUE((converted<bool>(int64_t{1} << 40)));
  EXPECT_FALSE((converted<bool>(-0.0)));
  EXPECT_TRUE((converted<bool>(Float16::from_bits(1))));
}

TEST(Convert, ForeignTrueBecomesOne) {
  const std::vector<uint8_t> bytes = {0, 1, 2, 255};
  const ConstTensorView view(bytes.data(), DType::boolean, {4});
  const Tensor copy = contiguous(view);
  const auto* stored = static_cast<const uint8_t*>(copy.data());
  EXPECT_EQ(std::vector<uint8_t>(stored, stored + 4), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(to(view, DType::i32).at<int32_t>({3}), 1);
}

TEST(Convert, NarrowingRoundsOnce) {
  // Just above the middle between 1 and the next Float16; a float on the way would fall onto the
  // middle, then to 1.
  EXPECT_EQ((converted<Float16>(1.0 + 0x1p-11 + 0x1p-40).bits), Float16(1.0 + 0x1p-10).bits);
  EXPECT_EQ((converted<BFloat16>(1.0 + 0x1p-8 + 0x1p-40).bits), BFloat16(1.0 + 0x1p-7).bits);
  EXPECT_EQ((converted<float>(1.0 + 0x1p-24 + 0x1p-50)), 1.0f + 0x1p-23f);
  // The same with integers: 2^62 + half a step + 1, which a double cannot hold.
  const int64_t above = (int64_t{1} << 62) + (int64_t{1} << 54) + 1;
  EXPECT_EQ((converted<BFloat16>(above).bits), BFloat16(0x1p62 + 0x1p55).bits);
  EXPECT_EQ((converted<BFloat16>(above - 1).bits), BFloat16(0x1p62).bits);
  EXPECT_EQ((converted<BFloat16>(-above).bits), BFloat16(-0x1p62 - 0x1p55).bits);
  EXPECT_EQ((converted<BFloat16>(-above + 1).bits), BFloat16(-0x1p62).bits);
  EXPECT_EQ((converted<BFloat16>(-above + 2).bits), BFloat16(-0x1p62).bits);
  EXPECT_EQ((converted<BFloat16>(std::numeric_limits<int64_t>::max()).bits), BFloat16(0x1p63).bits);
  EXPECT_EQ((converted<BFloat16>(std::numeric_limits<int64_t>::min()).bits),
            BFloat16(-0x1p63).bits);
  EXPECT_EQ((converted<Float16>(int32_t{65520}).bits), 0x7c00);
}

TEST(Convert, SpecialFloatsPassThrough) {
  EXPECT_TRUE(std::isnan(converted<float>(Float16(kNan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(converted<BFloat16>(kNan))));
  EXPECT_EQ((converted<double>(BFloat16(-kInf))), -kInf);
  EXPECT_TRUE(std::signbit(converted<float>(Float16(-0.0))));
  EXPECT_EQ((converted<float>(1e300)), std::numeric_limits<float>::infinity());
}

TEST(Convert, StridedViewsConvertInRowMajorOrder) {
  Tensor tensor = Tensor::from<float>({0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5}, {2, 2, 2});
  const Tensor result = to(tensor.view().permute({2, 0, 1}), DType::i8);
  const int8_t* values = result.data_as<int8_t>();
  EXPECT_EQ(std::vector<int8_t>(values, values + 8), (std::vector<int8_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(to(tensor.view().select(0, 1).select(0, 1).select(0, 1), DType::f64).at<double>({}),
            7.5);
}

}  // namespace
}  // namespace quire
