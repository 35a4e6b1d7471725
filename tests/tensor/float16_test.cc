// BFloat16 and Float16 against a definition that shares nothing with them: all 65,536 patterns
// decoded by ldexp, and narrowing by searching the sorted table of all values for the nearest, ties
// to the even pattern.
#include "quire/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class Half>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int kMantissa = 7, kBias = 127;
};
template <>
struct Format<Float16> {
  static constexpr int kMantissa = 10, kBias = 15;
};

template <class Half>
class Float16Test : public ::testing::Test {
 protected:
  static constexpr int kMantissa = Format<Half>::kMantissa;
  static constexpr int kBias = Format<Half>::kBias;
  static constexpr uint16_t kInfinity = 0x7fff >> kMantissa << kMantissa;

  static bool is_nan(uint16_t bits) { return (bits & 0x7fff) > kInfinity; }

  // The value of a pattern, by definition; not for NaN.
  static double decode(uint16_t bits) {
    const double sign = bits & 0x8000 ? -1 : 1;
    const int exponent = (bits & 0x7fff) >> kMantissa;
    const int mantissa = bits & ((1 << kMantissa) - 1);
    if ((bits & 0x7fff) == kInfinity) return sign * kInf;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - kMantissa);
    return sign * std::ldexp(mantissa + (1 << kMantissa), exponent - kBias - kMantissa);
  }

  // Nearest pattern to a finite value. Infinity counts as the value one step beyond the largest
  // finite one.
  static uint16_t nearest(double value) {
    static const std::vector<double> table = [] {
      std::vector<double> values;
      for (uint32_t bits = 0; bits < kInfinity; ++bits) {
        values.push_back(decode(static_cast<uint16_t>(bits)));
      }
      values.push_back(2 * values[kInfinity - 1] - values[kInfinity - 2]);
      return values;
    }();
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (magnitude >= table.back()) return sign | kInfinity;
    const auto above = std::upper_bound(table.begin(), table.end(), magnitude) - table.begin();
    const auto low = static_cast<uint16_t>(above - 1);
    const auto high = static_cast<uint16_t>(above);
    // Distances are exact: neighbours share all but a few bits with the value (Sterbenz), or the
    // value is tiny.
    const double to_low = magnitude - table[low];
    const double to_high = table[high] - magnitude;
    if (to_low != to_high) return sign | (to_low < to_high ? low : high);
    return sign | (low % 2 == 0 ? low : high);
  }

  static void expect_nearest(double value) {
    ASSERT_EQ(Half(value).bits, nearest(value)) << std::hexfloat << value;
  }
};

using Halves = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Float16Test, Halves);

TYPED_TEST(Float16Test, WideningIsExactForEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float widened = TypeParam::from_bits(pattern);
    if (this->is_nan(pattern)) {
      ASSERT_TRUE(std::isnan(widened)) << bits;
      ASSERT_NE(std::bit_cast<uint32_t>(widened) & 0x400000u, 0u) << "not quiet: " << bits;
      ASSERT_EQ(std::signbit(widened), (bits & 0x8000) != 0);
    } else {
      ASSERT_EQ(static_cast<double>(widened), this->decode(pattern)) << bits;
      ASSERT_EQ(std::signbit(widened), (bits & 0x8000) != 0) << bits;
    }
  }
}

TYPED_TEST(Float16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const uint16_t back = TypeParam(static_cast<float>(TypeParam::from_bits(pattern))).bits;
    const uint16_t quiet = this->is_nan(pattern) ? 1 << (this->kMantissa - 1) : 0;
    ASSERT_EQ(back, pattern | quiet);
  }
}

// Between every two neighbours: the middle, and the doubles on both sides of it. A float in between
// would already have rounded the latter two to the middle, so this also shows that doubles are not
// rounded twice.
TYPED_TEST(Float16Test, TiesGoToEvenAndOnlyTies) {
  for (uint32_t bits = 0; bits < this->kInfinity; ++bits) {
    const double low = this->decode(static_cast<uint16_t>(bits));
    const double high = bits + 1 == this->kInfinity
                            ? 2 * low - this->decode(static_cast<uint16_t>(bits - 1))
                            : this->decode(static_cast<uint16_t>(bits + 1));
    const double middle = low + (high - low) / 2;
    for (const double value : {middle, std::nextafter(middle, -kInf), std::nextafter(middle, kInf),
                               std::nextafter(low, kInf), std::nextafter(high, -kInf)}) {
      this->expect_nearest(value);
      this->expect_nearest(-value);
    }
  }
}

TYPED_TEST(Float16Test, RandomDoublesAndFloats) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) this->expect_nearest(value);
    const float narrow = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(narrow)) this->expect_nearest(narrow);
    // Around the range of the format, which random exponents seldom meet.
    this->expect_nearest(std::ldexp(1.0 + std::ldexp(static_cast<double>(random() >> 12), -52),
                                    static_cast<int>(random() % 300) - 150));
  }
}

TYPED_TEST(Float16Test, Corners) {
  EXPECT_EQ(TypeParam(0.0).bits, 0);
  EXPECT_EQ(TypeParam(-0.0).bits, 0x8000);
  EXPECT_EQ(TypeParam(kInf).bits, this->kInfinity);
  EXPECT_EQ(TypeParam(-kInf).bits, this->kInfinity | 0x8000);
  EXPECT_EQ(TypeParam(1e300).bits, this->kInfinity);
  EXPECT_EQ(TypeParam(std::numeric_limits<double>::denorm_min()).bits, 0);
  EXPECT_EQ(TypeParam(-std::numeric_limits<double>::denorm_min()).bits, 0x8000);
}

TYPED_TEST(Float16Test, NanStaysNanAndIsQuiet) {
  // Payloads that vanish when cut off must not turn into infinity.
  for (const uint64_t payload : {uint64_t{1}, uint64_t{1} << 51, (uint64_t{1} << 52) - 1}) {
    for (const uint64_t sign : {uint64_t{0}, uint64_t{1} << 63}) {
      const auto half = TypeParam(std::bit_cast<double>(sign | uint64_t{0x7ff} << 52 | payload));
      EXPECT_TRUE(this->is_nan(half.bits));
      EXPECT_NE(half.bits & 1 << (this->kMantissa - 1), 0);
      EXPECT_EQ(half.bits >> 15, static_cast<int>(sign >> 63));
    }
  }
}

static_assert(Float16(1.0).bits == 0x3c00 && Float16(65504.0).bits == 0x7bff);
static_assert(Float16(65520.0).bits == 0x7c00 && Float16(65519.0).bits == 0x7bff);
static_assert(BFloat16(1.0).bits == 0x3f80 &&
              static_cast<float>(BFloat16::from_bits(0xc040)) == -3.0f);
static_assert(static_cast<float>(Float16::from_bits(1)) == 0x1p-24f);
static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);

}  // namespace
}  // namespace quire
