// BFloat16 and Float16: 16-bit floats as values, with exact widening and correctly rounded
// narrowing. Portable code for single numbers; kernels have vector versions. Public; tensor
// layer.
#pragma once
#include <bit>
#include <concepts>
#include <cstdint>

namespace quire {
namespace detail {

// The same value as a double, computed from the bits: a conversion instruction would lose
// subnormals in a program that flushes them to zero.
constexpr double widen(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint64_t sign = uint64_t{bits >> 31} << 63;
  uint64_t exponent = bits >> 23 & 0xff, mantissa = bits & 0x7fffffu;
  if (exponent == 0 && mantissa == 0) return std::bit_cast<double>(sign);
  if (exponent == 0) {  // its leading bit becomes the implicit one of a normal number
    const int shift = 24 - static_cast<int>(std::bit_width(mantissa));
    mantissa = mantissa << shift & 0x7fffffu;
    exponent = static_cast<uint64_t>(1023 - 126 - shift);
  } else {
    exponent = exponent == 0xff ? 0x7ff : exponent + 1023 - 127;
  }
  return std::bit_cast<double>(sign | exponent << 52 | mantissa << 29);
}

// The nearest value, ties to even, of the format with `kMantissa` stored mantissa bits and smallest
// normal exponent `kMinExponent` (its bias is 1 - kMinExponent). A float is widened first, which is
// exact, so there is one rounding. Overflow gives infinity; a NaN becomes quiet and keeps its sign
// and upper payload.
template <int kMantissa, int kMinExponent>
constexpr uint16_t narrow_to_16_bits(double value) {
  constexpr int kMaxExponent = 1 - kMinExponent;
  constexpr uint64_t kInfinity = 0x7fffu >> kMantissa << kMantissa;
  constexpr uint64_t kMantissaMask = (uint64_t{1} << 52) - 1;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t sign = bits >> 63 << 15;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  const uint64_t mantissa = bits & kMantissaMask;
  if (exponent == 1024) {
    const uint64_t quiet = uint64_t{1} << (kMantissa - 1);
    const uint64_t nan = mantissa == 0 ? 0 : mantissa >> (52 - kMantissa) | quiet;
    return static_cast<uint16_t>(sign | kInfinity | nan);
  }
  if (exponent > kMaxExponent) return static_cast<uint16_t>(sign | kInfinity);
  // Below kMinExponent the result is subnormal: more bits are dropped. From 54 dropped bits on the
  // value is below half of the smallest subnormal, subnormal doubles included.
  const int below = exponent < kMinExponent ? kMinExponent - exponent : 0;
  const int dropped = 52 - kMantissa + below;
  if (dropped > 53) return static_cast<uint16_t>(sign);
  const uint64_t significand = mantissa | uint64_t{1} << 52;
  const uint64_t odd = significand >> dropped & 1;
  const uint64_t rounded = (significand + (uint64_t{1} << (dropped - 1)) - 1 + odd) >> dropped;
  // `rounded` holds the leading 1 of a normal number, which adds 1 to the exponent field; a carry
  // adds another, up to infinity.
  const uint64_t field = below > 0 ? 0 : static_cast<uint64_t>(exponent - kMinExponent);
  return static_cast<uint16_t>(sign | ((field << kMantissa) + rounded));
}

template <int kMantissa, int kMinExponent>
constexpr float widen_from_16_bits(uint16_t bits) {
  constexpr uint32_t kInfinity = 0x7fffu >> kMantissa << kMantissa;
  const uint32_t sign = uint32_t{bits} >> 15 << 31;
  const uint32_t magnitude = bits & 0x7fffu;
  const uint32_t mantissa = magnitude & ((1u << kMantissa) - 1);
  if (magnitude >= kInfinity) {
    const uint32_t nan = mantissa == 0 ? 0 : mantissa << (23 - kMantissa) | 0x400000u;
    return std::bit_cast<float>(sign | 0x7f800000u | nan);
  }
  // The exponent changes its bias. A subnormal is a normal float with a smaller
  // exponent (Float16), or keeps its exponent range and is shifted into place
  // (BFloat16).
  uint32_t exponent = magnitude >> kMantissa;
  uint32_t fraction = mantissa;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - (1 - kMinExponent));
  if (exponent == 0 && kRebias > 0 && fraction != 0) {
    const int shift = kMantissa + 1 - static_cast<int>(std::bit_width(fraction));
    fraction = fraction << shift & ((1u << kMantissa) - 1);
    return std::bit_cast<float>(sign | (kRebias + 1 - static_cast<uint32_t>(shift)) << 23 |
                                fraction << (23 - kMantissa));
  }
  if (exponent != 0) exponent += kRebias;
  return std::bit_cast<float>(sign | exponent << 23 | fraction << (23 - kMantissa));
}

}  // namespace detail

// The upper half of a float: 8 exponent bits, 7 mantissa bits.
struct BFloat16 {
  uint16_t bits = 0;

  constexpr BFloat16() = default;
  template <std::same_as<float> F>
  constexpr explicit BFloat16(F value) : BFloat16(detail::widen(value)) {}
  constexpr explicit BFloat16(double value) : bits(detail::narrow_to_16_bits<7, -126>(value)) {}
  static constexpr BFloat16 from_bits(uint16_t bits) {
    BFloat16 result;
    result.bits = bits;
    return result;
  }
  constexpr operator float() const { return detail::widen_from_16_bits<7, -126>(bits); }
};

// IEEE binary16: 5 exponent bits, 10 mantissa bits.
struct Float16 {
  uint16_t bits = 0;

  constexpr Float16() = default;
  template <std::same_as<float> F>
  constexpr explicit Float16(F value) : Float16(detail::widen(value)) {}
  constexpr explicit Float16(double value) : bits(detail::narrow_to_16_bits<10, -14>(value)) {}
  static constexpr Float16 from_bits(uint16_t bits) {
    Float16 result;
    result.bits = bits;
    return result;
  }
  constexpr operator float() const { return detail::widen_from_16_bits<10, -14>(bits); }
};

}  // namespace quire
