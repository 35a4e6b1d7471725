// quantize and dequantize: every format against a decoder of its definition in f64, the error a
// code may have, names, sizes, scales, rotations, and what is refused.
#include "quire/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quire/error.h"
#include "tests/support/same_bits.h"

namespace quire {
namespace {

// What the call throws says so.
template <class Call>
void expect_error(const Call& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

using testing::same_bits;

Tensor random_numbers(const Shape& shape, std::uint64_t seed, double size = 1) {
  Tensor x(shape, DType::f32);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data_as<float>()[i] = static_cast<float>(size) * normal(random);
  return x;
}

double half(const std::uint8_t* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 ? -size : size;
}

double fp8(int code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double size =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return code & 0x80 ? -size : size;
}

// The number of channel `d` of row `row`, by the words of quantize.h. Rows of [heads, tokens, dim].
double decoded(const QuantizedTensor& x, std::int64_t row, std::int64_t head, std::int64_t d) {
  const std::string name = x.format.name();
  const auto* const codes =
      static_cast<const std::uint8_t*>(x.codes.data()) + row * x.codes.dim(-1);
  const auto* const f32 =
      x.scales.numel() > 0 && x.scales.dtype() == DType::f32 ? x.scales.data_as<float>() : nullptr;
  const auto nibble = [&](const std::uint8_t* from) {
    return d % 32 < 16 ? from[d % 16] & 15 : from[d % 16] >> 4;
  };
  const std::int64_t dim = x.shape()[2];
  if (name == "int8") return static_cast<std::int8_t>(codes[d]) * double{f32[row]};
  if (name == "int8_channel")
    return static_cast<std::int8_t>(codes[d]) * double{f32[head * dim + d]};
  if (name == "u8") return (codes[d] - double{f32[2 * row + 1]}) * f32[2 * row];
  if (name == "fp8_e4m3") return fp8(codes[d], 3, 7) * f32[head];
  if (name == "fp8_e5m2") return fp8(codes[d], 2, 15) * f32[head];
  if (name == "q8_0") {
    const std::uint8_t* block = codes + d / 32 * 34;
    return static_cast<std::int8_t>(block[2 + d % 32]) * half(block);
  }
  if (name == "q4_0") {
    const std::uint8_t* block = codes + d / 32 * 18;
    return (nibble(block + 2) - 8) * half(block);
  }
  const auto* scales =
      static_cast<const std::uint8_t*>(x.scales.data()) + (row * (dim / 32) + d / 32) * 4;
  return nibble(codes + d / 32 * 16) * half(scales) + half(scales + 2);
}

TEST(Quantize, CodesDecodeToWhatTheirFormatSays) {
  for (const std::string& name : KVFormat::names()) {
    for (const std::int64_t dim : {32, 64, 96, 160}) {
      const Tensor x = random_numbers({3, 5, dim}, 1, 2.5);
      const QuantizedTensor codes = quantize(x, KVFormat::of(name), {.head_axis = 0});
      EXPECT_EQ(codes.shape(), x.shape());
      const Tensor back = dequantize(codes, DType::f32, 0);
      ASSERT_EQ(back.shape(), x.shape());
      double worst = 0, largest = 0;
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t t = 0; t < 5; ++t) {
          for (std::int64_t d = 0; d < dim; ++d) {
            const float got = back.at<float>({h, t, d});
            const double wanted = decoded(codes, h * 5 + t, h, d);
            ASSERT_NEAR(got, wanted, 3e-7 * (std::fabs(wanted) + 8)) << name << " " << dim;
            worst = std::max(worst, std::fabs(double{got} - double{x.at<float>({h, t, d})}));
            largest = std::max(largest, std::fabs(double{x.at<float>({h, t, d})}));
          }
        }
      }
      // Half a step of the coarsest scale there can be.
      const bool is_four = name == "int4" || name == "q4_0", is_fp8 = name.starts_with("fp8");
      const double steps = is_four ? 7 : (name == "fp8_e5m2" ? 8 : (is_fp8 ? 16 : 127));
      EXPECT_LE(worst, largest / steps * (is_four || is_fp8 ? 1.1 : 0.51)) << name << " " << dim;
    }
  }
}

TEST(Quantize, AnyStridesAndTypesHaveTheCodesOfTheirNumbers) {
  const Tensor x = random_numbers({2, 3, 7, 64}, 2);
  for (const std::string& name : KVFormat::names()) {
    const KVFormat format = KVFormat::of(name);
    const QuantizedTensor codes = quantize(x, format);
    const Tensor swapped = contiguous(x.view().transpose(1, 2));
    const QuantizedTensor same = quantize(swapped.view().transpose(1, 2), format);
    EXPECT_TRUE(same_bits(codes.codes, same.codes)) << name;
    EXPECT_TRUE(same_bits(codes.scales, same.scales)) << name;
    for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
      const Tensor other = x.to(dtype);
      const QuantizedTensor a = quantize(other, format), b = quantize(other.to(DType::f32), format);
      EXPECT_TRUE(same_bits(a.codes, b.codes)) << name;
      EXPECT_TRUE(same_bits(a.scales, b.scales)) << name;
    }
  }
}

TEST(Quantize, HeadDimsThatAreNoMultipleOfVectors) {
  for (const char* name : {"int8", "int8_channel", "u8", "fp8_e4m3", "fp8_e5m2"}) {
    for (std::int64_t dim = 1; dim <= 40; ++dim) {
      const Tensor x = random_numbers({2, 3, dim}, static_cast<std::uint64_t>(dim));
      const QuantizedTensor codes = quantize(x, KVFormat::of(name), {.head_axis = 0});
      const Tensor back = dequantize(codes, DType::f64, 0);
      for (std::int64_t row = 0; row < 6; ++row)
        for (std::int64_t d = 0; d < dim; ++d)
          ASSERT_NEAR(back.data_as<double>()[row * dim + d], decoded(codes, row, row / 3, d), 3e-6)
              << name << " " << dim;
    }
  }
}

TEST(Quantize, EveryFp8CodeIsReadAndWritten) {
  for (const bool is_e4m3 : {true, false}) {
    const KVFormat format = KVFormat::of(is_e4m3 ? "fp8_e4m3" : "fp8_e5m2");
    Tensor codes({1, 1, 1, 256}, DType::u8);
    for (int i = 0; i < 256; ++i) codes.data_as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
    const Tensor one = Tensor::from<float>({1.0f});
    const Tensor numbers = dequantize(KVView(codes, one, format));
    const int first_special = is_e4m3 ? 0x7f : 0x7c;
    std::vector<float> finite;
    for (int i = 0; i < 256; ++i) {
      const float x = numbers.data_as<float>()[i];
      if ((i & 0x7f) < first_special) {
        EXPECT_EQ(double{x}, is_e4m3 ? fp8(i, 3, 7) : fp8(i, 2, 15)) << i;
        finite.push_back(x);
      } else if (is_e4m3 || (i & 0x7f) > 0x7c) {
        EXPECT_TRUE(std::isnan(x)) << i;
      } else {
        EXPECT_TRUE(std::isinf(x)) << i;
      }
    }
    const Tensor x =
        Tensor::from<float>(finite, {1, 1, 1, static_cast<std::int64_t>(finite.size())});
    const QuantizedTensor back = quantize(x, format, {.scales = one.view()});
    for (std::size_t i = 0; i < finite.size(); ++i) {
      const int code = back.codes.data_as<std::uint8_t>()[i];
      EXPECT_EQ(is_e4m3 ? fp8(code, 3, 7) : fp8(code, 2, 15), double{finite[i]});
    }
    // Halfway goes to even, what is too large to the largest.
    const float large = is_e4m3 ? 448 : 57344;
    const Tensor more = Tensor::from<float>({17.0f, 19.0f, 1e9f, -1e9f}, {1, 1, 1, 4});
    const Tensor got = dequantize(quantize(more, format, {.scales = one.view()}));
    EXPECT_EQ(got.data_as<float>()[0], 16.0f);
    EXPECT_EQ(got.data_as<float>()[1], is_e4m3 ? 20.0f : 20.0f);
    EXPECT_EQ(got.data_as<float>()[2], large);
    EXPECT_EQ(got.data_as<float>()[3], -large);
  }
}

TEST(Quantize, ARotationIsUndone) {
  for (const std::string& name : KVFormat::names()) {
    for (const std::int64_t dim : {32, 96, 128}) {
      const Tensor x = random_numbers({1, 2, 9, dim}, 5);
      const Tensor back = dequantize(quantize(x, KVFormat::of(name, true)));
      double error = 0, size = 0;
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        error += std::pow(double{back.data_as<float>()[i]} - double{x.data_as<float>()[i]}, 2);
        size += std::pow(double{x.data_as<float>()[i]}, 2);
      }
      EXPECT_LT(std::sqrt(error / size), 0.12) << name << " " << dim;
    }
  }
}

TEST(Quantize, ZerosConstantsAndTinyNumbers) {
  for (const std::string& name : KVFormat::names()) {
    Tensor x({1, 1, 4, 32}, DType::f32);
    for (int d = 0; d < 32; ++d) {
      x.at<float>({0, 0, 1, d}) = 3.0f;
      x.at<float>({0, 0, 2, d}) = -0.5f;
    }
    const Tensor back = dequantize(quantize(x, KVFormat::of(name)));
    for (std::int64_t i = 0; i < x.numel(); ++i)
      EXPECT_NEAR(back.data_as<float>()[i], x.data_as<float>()[i], 0.13) << name << " " << i;
    Tensor tiny({1, 1, 1, 32}, DType::f32);
    for (int d = 0; d < 32; ++d)
      tiny.data_as<float>()[d] = static_cast<float>(d) * std::numeric_limits<float>::denorm_min();
    const Tensor small = dequantize(quantize(tiny, KVFormat::of(name)));
    for (int d = 0; d < 32; ++d) EXPECT_NEAR(small.data_as<float>()[d], 0, 1e-40) << name;
  }
}

TEST(Quantize, WhatHasNoCodeIsRefused) {
  for (const std::string& name : KVFormat::names()) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      Tensor x = random_numbers({1, 2, 3, 32}, 6);
      x.at<float>({0, 1, 2, 5}) = bad;
      expect_error([&] { quantize(x, KVFormat::of(name)); }, "[quantize] row [0, 1, 2] holds NaN");
    }
  }
  Tensor large = random_numbers({1, 1, 1, 32}, 7);
  large.data_as<float>()[3] = 1e9f;
  for (const char* name : {"int4", "q8_0", "q4_0"})
    expect_error([&] { quantize(large, KVFormat::of(name)); }, "too large for a scale in f16");
}

TEST(Quantize, WhatDoesNotFitSaysWhatDoes) {
  const Tensor x = random_numbers({1, 2, 3, 80}, 8);
  expect_error(
      [&] { quantize(x, KVFormat::of("int4")); },
      "[KVFormat] int4 codes groups of 32 channels, and a head dim of 80 is no multiple of "
      "that (64 or 96 would fit)");
  expect_error([&] { quantize(x, KVFormat::of("q8_0")); }, "q8_0 codes groups of 32");
  expect_error([] { KVFormat::of("int5"); }, "[KVFormat] there is no format int5; there are int8,");
  expect_error([&] { quantize(x, KVFormat{.storage = KVStorage::kU8}); },
               "there is no format of u8 codes with a scale per token");
  expect_error([&] { quantize(x, KVFormat()); }, "plain has no codes");
  expect_error([&] { quantize(x.to(DType::i32), KVFormat::of("int8")); }, "x must be f32");
  const Tensor two = Tensor::from<float>({1.0f, 2.0f});
  expect_error([&] { quantize(x, KVFormat::of("int8"), {.scales = two.view()}); },
               "int8 finds the scales of its rows; give none");
  expect_error([&] { quantize(x, KVFormat::of("int8_channel"), {.scales = two.view()}); },
               "the scales of x (int8_channel [1, 2, 3, 80]) must be [2, 80]; got [2]");
  const Tensor negative = Tensor::from<float>({-1.0f, 2.0f});
  expect_error([&] { quantize(x, KVFormat::of("fp8_e4m3"), {.scales = negative.view()}); },
               "scales must be finite and not negative; got -1");
  expect_error([&] { dequantize(KVView(x.to(DType::i8), two, KVFormat::of("int8"))); },
               "the scales of x (int8 [1, 2, 3, 80]) must be [1, 2, 3]; got [2]");
  expect_error([&] { dequantize(KVView(x, two, KVFormat::of("int8"))); },
               "the codes of x (int8) must be i8; got f32");
}

}  // namespace
}  // namespace quire
