// Rows of f32 to codes of keys and values, and the scales that suit them. Every operation is
// rounded by itself and the same number by number as on vectors, so codes do not depend on the ISA.
// Kernels layer.
#pragma once
#include <cstring>
#include <limits>

#include "kernels/coding/functions.h"
#include "kernels/float16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Numbers are divided by scales below this; above, they are multiplied by 1 / scale, which is
// finite.
constexpr float kSmallScale = 0x1p-120f;

HWY_INLINE uint32_t magnitude_bits(float x) {
  return __builtin_bit_cast(uint32_t, x) & 0x7fffffffu;
}
constexpr uint32_t kInfinityBits = 0x7f800000u;

struct RowRange {
  uint32_t largest = 0;  // magnitude; kInfinityBits and above: one is not finite
  float least = 0, most = 0;
};

HWY_INLINE uint32_t largest_magnitude(const float* from, int count) {
  uint32_t largest = 0;
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  if (count >= kN) {
    VU all = hn::Zero(kU32);
    const VU magnitude = hn::Set(kU32, 0x7fffffffu);
    for (; c + kN <= count; c += kN)
      all = hn::Max(all, hn::And(hn::BitCast(kU32, hn::LoadU(kF32, from + c)), magnitude));
    largest = hn::GetLane(hn::MaxOfLanes(kU32, all));
  }
#endif
  for (; c < count; ++c) largest = HWY_MAX(largest, magnitude_bits(from[c]));
  return largest;
}

// The range of finite numbers.
HWY_INLINE RowRange range_of(const float* from, int count) {
  RowRange range{.largest = largest_magnitude(from, count), .least = from[0], .most = from[0]};
  if (range.largest >= kInfinityBits) return range;
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  if (count >= kN) {
    V least = hn::LoadU(kF32, from), most = least;
    for (c = kN; c + kN <= count; c += kN) {
      const V x = hn::LoadU(kF32, from + c);
      least = hn::Min(least, x);
      most = hn::Max(most, x);
    }
    range.least = hn::GetLane(hn::MinOfLanes(kF32, least));
    range.most = hn::GetLane(hn::MaxOfLanes(kF32, most));
  }
#endif
  for (; c < count; ++c) {
    range.least = from[c] < range.least ? from[c] : range.least;
    range.most = from[c] > range.most ? from[c] : range.most;
  }
  range.least += 0.0f;  // -0 would make another zero point than +0
  range.most += 0.0f;
  return range;
}

// Nearest, ties to even, of a number below 2^22.
HWY_INLINE float nearest(float x) {
  constexpr float kMagic = 0x1.8p23f;
  return (x + kMagic) - kMagic;
}
// Ties away from 0, as C's roundf.
HWY_INLINE float nearest_away(float x) {
  const float a = __builtin_fabsf(x), whole = __builtin_floorf(a);
  return __builtin_copysignf(whole + __builtin_floorf(2 * (a - whole)), x);
}
HWY_INLINE float clamped(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// codes[c] = nearest(x * factor + shift), or x / divisor if the factor is 0; low <= code <= high.
struct IntegerCodes {
  float factor, divisor, shift, low, high;
  HWY_INLINE float code(float x) const {
    const float scaled = factor != 0 ? x * factor : x / divisor;
    return nearest(clamped(scaled + shift, low, high));
  }
};

HWY_INLINE IntegerCodes integer_codes(float scale, float shift, float low, float high) {
  const bool small = !(__builtin_fabsf(scale) >= kSmallScale);
  return {small ? 0 : 1 / scale, scale, shift, low, high};
}

// Codes of 1 byte, signed or not.
HWY_INLINE void write_bytes(const IntegerCodes& rule, const float* from, int count, char* to) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  if (rule.factor != 0) {
    const hn::Rebind<uint8_t, F32> narrow;
    const V factor = hn::Set(kF32, rule.factor), shift = hn::Set(kF32, rule.shift);
    const V low = hn::Set(kF32, rule.low), high = hn::Set(kF32, rule.high);
    const V magic = hn::Set(kF32, 0x1.8p23f);
    for (; c + kN <= count; c += kN) {
      const V x = hn::Add(hn::Mul(hn::LoadU(kF32, from + c), factor), shift);
      // The low byte of the sum is the code.
      const V rounded = hn::Add(hn::Min(hn::Max(x, low), high), magic);
      const auto bytes = hn::TruncateTo(narrow, hn::BitCast(kU32, rounded));
      hn::StoreU(bytes, narrow, reinterpret_cast<uint8_t*>(to + c));
    }
  }
#endif
  for (; c < count; ++c) to[c] = static_cast<char>(static_cast<int>(rule.code(from[c])));
}

HWY_INLINE void write_f32(float x, char* to) { std::memcpy(to, &x, 4); }
// Writes x as f16; returns the value it was rounded to.
HWY_INLINE float write_f16(float x, char* to) {
  const F16Bits half = narrowed_f16(x);
  std::memcpy(to, &half, 2);
  return widened<float>(half);
}

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// Each returns whether all numbers of the run have codes.

HWY_INLINE bool encode_i8(const float* from, int count, char* codes, char* scale) {
  const uint32_t largest = largest_magnitude(from, count);
  const bool fits = largest < kInfinityBits;
  const float found = fits ? __builtin_bit_cast(float, largest) / 127 : kNotANumber;
  write_f32(found, scale);
  if (!fits || found == 0)
    std::memset(codes, 0, static_cast<size_t>(count));
  else
    write_bytes(integer_codes(found, 0, -127, 127), from, count, codes);
  return fits;
}

HWY_INLINE bool encode_u8(const float* from, int count, char* codes, char* scale) {
  const RowRange range = range_of(from, count);
  const float width = range.most - range.least;
  const bool fits = range.largest < kInfinityBits && magnitude_bits(width) < kInfinityBits;
  float found = width / 255;
  if (!fits || found < kSmallScale) {  // all numbers are equal, or nearly
    std::memset(codes, 0, static_cast<size_t>(count));
    const float x = range.least;
    write_f32(fits ? (x == 0 ? 1 : __builtin_fabsf(x)) : kNotANumber, scale);
    write_f32(fits && x != 0 ? (x < 0 ? 1.0f : -1.0f) : 0.0f, scale + 4);
    return fits;
  }
  const float zero = -range.least / found;
  write_f32(found, scale);
  write_f32(zero, scale + 4);
  write_bytes(integer_codes(found, zero, 0, 255), from, count, codes);
  return true;
}

#if HWY_TARGET != HWY_SCALAR
// Codes of 32 numbers to 16 bytes; `code` takes the place of a vector of numbers and gives their
// codes, in the low bytes of its lanes.
template <class Code>
HWY_INLINE void pack_nibbles(const Code& code, const float* from, char* codes) {
  constexpr int kHalf = kCodeGroup / 2;
  const hn::Rebind<uint8_t, F32> narrow;
  for (int i = 0; i < kHalf; i += static_cast<int>(kLanes)) {
    const VU both = hn::Or(code(from + i), hn::ShiftLeft<4>(code(from + kHalf + i)));
    hn::StoreU(hn::TruncateTo(narrow, both), narrow, reinterpret_cast<uint8_t*>(codes + i));
  }
}
#endif

// The codes of 32 numbers less `least`, packed.
HWY_INLINE void write_nibbles(const IntegerCodes& rule, const float* from, float least,
                              char* codes) {
#if HWY_TARGET != HWY_SCALAR
  if (rule.factor != 0) {
    const V low = hn::Set(kF32, rule.low), high = hn::Set(kF32, rule.high);
    const auto code = [&](const float* at) HWY_ATTR {
      const V above = hn::Sub(hn::LoadU(kF32, at), hn::Set(kF32, least));
      const V x = hn::Add(hn::Mul(above, hn::Set(kF32, rule.factor)), hn::Set(kF32, rule.shift));
      // As in write_bytes, in the low byte.
      const V rounded = hn::Add(hn::Min(hn::Max(x, low), high), hn::Set(kF32, 0x1.8p23f));
      return hn::BitCast(kU32, rounded);
    };
    return pack_nibbles(code, from, codes);
  }
#endif
  constexpr int kHalf = kCodeGroup / 2;
  for (int i = 0; i < kHalf; ++i) {
    const auto code = [&](int c) { return static_cast<int>(rule.code(from[c] - least)); };
    codes[i] = static_cast<char>(code(i) | code(kHalf + i) << 4);
  }
}

HWY_INLINE bool encode_u4(const float* from, char* codes, char* scale) {
  const RowRange range = range_of(from, kCodeGroup);
  bool fits = range.largest < 0x477ff000u;  // 65520: below it an f16 is finite
  if (!fits) {
    std::memset(codes, 0, kCodeGroup / 2);
    write_f16(kNotANumber, scale);
    write_f16(0, scale + 2);
    return false;
  }
  const float least = write_f16(range.least, scale + 2);
  const float found = write_f16((range.most - least) / 15, scale);
  if (found > 0)
    write_nibbles(integer_codes(found, 0, 0, 15), from, least, codes);
  else
    std::memset(codes, 0, kCodeGroup / 2);
  return true;
}

// A group times `factor`, to the nearest, ties away from 0.
HWY_INLINE void write_nearest_away(const float* from, float factor, char* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kCodeGroup; ++i)
    to[i] = static_cast<char>(static_cast<int>(nearest_away(from[i] * factor)));
#else
  const hn::Rebind<int8_t, I32> narrow;
  for (int i = 0; i < kCodeGroup; i += static_cast<int>(kLanes)) {
    const V x = hn::Mul(hn::LoadU(kF32, from + i), hn::Set(kF32, factor));
    const V a = hn::Abs(x), whole = hn::Floor(a), rest = hn::Sub(a, whole);
    const V rounded = hn::CopySign(hn::Add(whole, hn::Floor(hn::Add(rest, rest))), x);
    hn::StoreU(hn::DemoteTo(narrow, hn::ConvertTo(kI32, rounded)), narrow,
               reinterpret_cast<int8_t*>(to + i));
  }
#endif
}

// x * factor + 8.5 without its fraction, 0 to 15, of a group, packed.
HWY_INLINE void write_q4_0(const float* from, float factor, char* codes) {
#if HWY_TARGET == HWY_SCALAR
  constexpr int kHalf = kCodeGroup / 2;
  const auto code = [&](int c) {
    return static_cast<int>(clamped(from[c] * factor + 8.5f, 0, 15));
  };
  for (int i = 0; i < kHalf; ++i) codes[i] = static_cast<char>(code(i) | code(kHalf + i) << 4);
#else
  const V middle = hn::Set(kF32, 8.5f), low = hn::Zero(kF32), high = hn::Set(kF32, 15);
  const auto code = [&](const float* at) HWY_ATTR {
    const V x = hn::Add(hn::Mul(hn::LoadU(kF32, at), hn::Set(kF32, factor)), middle);
    return hn::BitCast(kU32, hn::ConvertTo(kI32, hn::Min(hn::Max(x, low), high)));
  };
  pack_nibbles(code, from, codes);
#endif
}

// The first of a group with this magnitude. Where it is cannot be foreseen, so nothing branches.
HWY_INLINE float first_of_magnitude(const float* from, uint32_t bits) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kCodeGroup; ++i)
    if (magnitude_bits(from[i]) == bits) return from[i];
  return 0;
#else
  const VU wanted = hn::Set(kU32, bits), magnitude = hn::Set(kU32, 0x7fffffffu);
  uint32_t found = 0;
  for (int i = 0; i < kCodeGroup; i += static_cast<int>(kLanes)) {
    uint8_t bytes[8] = {};
    const VU size = hn::And(hn::BitCast(kU32, hn::LoadU(kF32, from + i)), magnitude);
    hn::StoreMaskBits(kU32, hn::Eq(size, wanted), bytes);
    uint16_t lanes;
    std::memcpy(&lanes, bytes, 2);
    found |= static_cast<uint32_t>(lanes) << i;
  }
  return found == 0 ? 0 : from[__builtin_ctz(found)];
#endif
}

HWY_INLINE bool encode_q8_0(const float* from, char* block) {
  const uint32_t largest = largest_magnitude(from, kCodeGroup);
  const float found = __builtin_bit_cast(float, largest) / 127;
  const bool fits = largest < kInfinityBits && found < 65520;
  write_f16(fits ? found : kNotANumber, block);
  const float factor = found == 0 ? 0 : 1 / found;
  if (!fits || magnitude_bits(factor) >= kInfinityBits) {
    std::memset(block + 2, 0, kCodeGroup);
    return fits;
  }
  write_nearest_away(from, factor, block + 2);
  return true;
}

HWY_INLINE bool encode_q4_0(const float* from, char* block) {
  const uint32_t largest = largest_magnitude(from, kCodeGroup);
  const float found = first_of_magnitude(from, largest) / -8;
  const bool fits = largest < kInfinityBits && __builtin_fabsf(found) < 65520;
  write_f16(fits ? found : kNotANumber, block);
  const float factor = found == 0 ? 0 : 1 / found;
  if (fits && magnitude_bits(factor) < kInfinityBits)
    write_q4_0(from, factor, block + 2);
  else
    std::memset(block + 2, 8 | 8 << 4, kCodeGroup / 2);
  return fits;
}

// An fp8 number, nearest, ties to even; what is too large becomes the largest. `kMantissa` stored
// bits; the least normal exponent is kLeast; kLargest has the bits of the largest number.
template <int kMantissa, int kLeast, uint32_t kLargest>
HWY_INLINE uint8_t narrowed_fp8(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint32_t>(bits >> 31 << 7);
  uint32_t result;
  if (magnitude > kInfinityBits) {
    result = 0x7f;
  } else if (magnitude < static_cast<uint32_t>(127 + kLeast) << 23) {
    // Results are multiples of 2^(kLeast - kMantissa), the last bit of the sum with 2^23 times
    // that.
    constexpr auto kSum = static_cast<uint32_t>(127 + kLeast - kMantissa + 23) << 23;
    const float sum = __builtin_bit_cast(float, magnitude) + __builtin_bit_cast(float, kSum);
    result = __builtin_bit_cast(uint32_t, sum) - kSum;
  } else {
    constexpr int kDropped = 23 - kMantissa;
    const uint32_t rebiased = magnitude - (static_cast<uint32_t>(126 + kLeast) << 23);
    result = (rebiased + (1u << (kDropped - 1)) - 1 + (rebiased >> kDropped & 1)) >> kDropped;
    result = HWY_MIN(result, kLargest);
  }
  return static_cast<uint8_t>(sign | result);
}

template <bool kIsE4M3>
HWY_INLINE bool encode_fp8(const float* from, int count, float scale, char* codes) {
  const bool fits = largest_magnitude(from, count) < kInfinityBits;
  for (int c = 0; c < count; ++c) {
    const float x = scale == 0 ? 0 : from[c] / scale;
    codes[c] =
        static_cast<char>(kIsE4M3 ? narrowed_fp8<3, -6, 0x7e>(x) : narrowed_fp8<2, -14, 0x7b>(x));
  }
  return fits;
}

// Scales of channels or of the head, given.
HWY_INLINE bool encode_given(const RowCoding& coding, const float* from, int count, char* codes,
                             const char* scales) {
  const bool fits = largest_magnitude(from, count) < kInfinityBits;
  for (int c = 0; c < count; ++c) {
    float scale;
    std::memcpy(&scale, scales + (coding.group == 1 ? 4 * c : 0), 4);
    if (coding.codes == CodeType::kE4M3 || coding.codes == CodeType::kE5M2) {
      const bool is_e4m3 = coding.codes == CodeType::kE4M3;
      is_e4m3 ? encode_fp8<true>(from + c, 1, scale, codes + c)
              : encode_fp8<false>(from + c, 1, scale, codes + c);
      continue;
    }
    const float x = scale == 0 ? 0 : from[c] / scale;
    codes[c] = static_cast<char>(static_cast<int>(nearest(clamped(fits ? x : 0, -127, 127))));
  }
  return fits;
}

// One row; its scales begin at `scales`.
HWY_INLINE bool encode_row(const EncodeRowsArgs& args, const float* from, char* codes,
                           char* scales) {
  const RowCoding& coding = args.coding;
  if (args.given) {
    if (coding.group == 0 && coding.codes != CodeType::kI8) {
      float scale;
      std::memcpy(&scale, scales, 4);
      return coding.codes == CodeType::kE4M3 ? encode_fp8<true>(from, args.columns, scale, codes)
                                             : encode_fp8<false>(from, args.columns, scale, codes);
    }
    return encode_given(coding, from, args.columns, codes, scales);
  }
  if (coding.group == 0) {
    return coding.codes == CodeType::kI8 ? encode_i8(from, args.columns, codes, scales)
                                         : encode_u8(from, args.columns, codes, scales);
  }
  bool fits = true;
  for (int c = 0; c < args.columns; c += kCodeGroup, from += kCodeGroup) {
    if (!coding.in_blocks) {
      fits &= encode_u4(from, codes, scales);
      codes += kCodeGroup / 2;
      scales += 4;
    } else if (coding.codes == CodeType::kI8) {
      fits &= encode_q8_0(from, codes);
      codes += kCodeGroup + 2;
    } else {
      fits &= encode_q4_0(from, codes);
      codes += kCodeGroup / 2 + 2;
    }
  }
  return fits;
}

inline int encode_rows(const EncodeRowsArgs& args) noexcept {
  int first = args.rows;
  for (int row = 0; row < args.rows; ++row) {
    const bool fits =
        encode_row(args, args.from + row * args.from_step, args.codes + row * args.code_step,
                   args.scales + row * args.scale_step);
    if (!fits && first == args.rows) first = row;
  }
  return first;
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
