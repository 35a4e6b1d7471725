// Converts codes of one byte to pairs of bf16, in registers; bf16 represents all of them exactly.
// Scales are not applied here: they multiply scores and weights (attention_order.h). Kernels layer.
#pragma once
#include <bit>

#include "kernels/coding/decode-inl.h"

#if defined(QUIRE_BF16_DOT)
HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Two numbers that are bf16 already, as a pair.
HWY_INLINE VU exact_pair(V even, V odd) {
  const VU high = hn::And(hn::BitCast(kU32, odd), hn::Set(kU32, 0xffff0000u));
  return hn::Or(hn::ShiftRight<16>(hn::BitCast(kU32, even)), high);
}

#if defined(QUIRE_VBMI)

// The bf16 of a code without its sign.
template <CodeType kType>
constexpr uint32_t bf16_of_magnitude(int magnitude) {
  if constexpr (kType == CodeType::kI8)
    return std::bit_cast<uint32_t>(static_cast<float>(magnitude)) >> 16;
  constexpr int kMantissa = kType == CodeType::kE4M3 ? 3 : 2;
  constexpr int kBias = kType == CodeType::kE4M3 ? 7 : 15;
  if (kType == CodeType::kE4M3 ? magnitude == 0x7f : magnitude > 0x7c) return 0x7fc0;  // NaN
  if (kType == CodeType::kE5M2 && magnitude == 0x7c) return 0x7f80;
  int exponent = magnitude >> kMantissa, mantissa = magnitude & ((1 << kMantissa) - 1);
  if (exponent == 0) {
    if (mantissa == 0) return 0;
    for (exponent = 1; mantissa >> kMantissa == 0; mantissa *= 2) --exponent;
    mantissa &= (1 << kMantissa) - 1;
  }
  return static_cast<uint32_t>(exponent - kBias + 127) << 7 | static_cast<uint32_t>(mantissa)
                                                                  << (7 - kMantissa);
}

// The two bytes of these bf16 numbers, indexed by magnitude, and where they go: four codes of a
// lane to two pairs, and 32 codes of one key, then 32 of the next, to 32 pairs.
template <CodeType kType>
struct CodeTables {
  alignas(64) uint8_t low[128], high[128], of_lane[2][64], of_keys[2][64];

  constexpr CodeTables() : low(), high(), of_lane(), of_keys() {
    for (int i = 0; i < 128; ++i) {
      low[i] = static_cast<uint8_t>(bf16_of_magnitude<kType>(i) & 0xff);
      high[i] = static_cast<uint8_t>(bf16_of_magnitude<kType>(i) >> 8);
    }
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 64; ++i) {
        const int byte = i % 2 * 64, odd = i / 2 % 2;  // 64: of the high ones
        of_lane[half][i] = static_cast<uint8_t>(byte + i / 4 * 4 + 2 * half + odd);
        of_keys[half][i] = static_cast<uint8_t>(byte + 32 * odd + 16 * half + i / 4);
      }
    }
  }
};

// 64 codes to 32 + 32 numbers, in the order of `places`.
template <CodeType kType>
HWY_INLINE void widen_codes(__m512i codes, const uint8_t (&places)[2][64],
                            const CodeTables<kType>& tables, VU (&pairs)[2]) {
  const __m512i sign = _mm512_set1_epi8(-128);
  // Only 7 bits are used: -128 finds 0.
  const __m512i magnitude = kType == CodeType::kI8 ? _mm512_abs_epi8(codes) : codes;
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(tables.low), magnitude,
                                               _mm512_load_si512(tables.low + 64));
  __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(tables.high), magnitude,
                                          _mm512_load_si512(tables.high + 64));
  high = _mm512_ternarylogic_epi32(high, codes, sign, 0xf8);  // high | (codes & sign)
  if constexpr (kType == CodeType::kI8)
    high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(codes, sign), _mm512_set1_epi8(-61));
  QUIRE_UNROLL for (int i = 0; i < 2; ++i) pairs[i] =
      VU{_mm512_permutex2var_epi8(low, _mm512_load_si512(places[i]), high)};
}

template <CodeType kType>
constexpr CodeTables<kType> kCodeTables;

template <CodeType kType>
HWY_INLINE void pairs_of_lane(VU x, VU (&pairs)[2]) {
  widen_codes<kType>(x.raw, kCodeTables<kType>.of_lane, kCodeTables<kType>, pairs);
}

/// Vectors of columns that pairs_of_keys makes.
constexpr int kPairVectors = 2;

template <CodeType kType>
HWY_INLINE void pairs_of_keys(const char* even, const char* odd, VU (&pairs)[2]) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd));
  const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  widen_codes<kType>(codes, kCodeTables<kType>.of_keys, kCodeTables<kType>, pairs);
}

#else

// Code kByte of every lane.
template <CodeType kType, int kByte>
HWY_INLINE V code_of_lane(VU x) {
  const VU top = hn::ShiftLeft<24 - 8 * kByte>(x);
  if constexpr (kType == CodeType::kI8) {
    return hn::ConvertTo(kF32, hn::ShiftRight<24>(hn::BitCast(kI32, top)));
  } else {
    const hn::Rebind<uint8_t, F32> narrow;
    HWY_ALIGN uint8_t codes[kLanes];
    hn::Store(hn::TruncateTo(narrow, hn::ShiftRight<24>(top)), narrow, codes);
    return code_vector<kType>(codes);
  }
}

// Four codes of a lane to the pairs of the first two and of the other two.
template <CodeType kType>
HWY_INLINE void pairs_of_lane(VU x, VU (&pairs)[2]) {
  pairs[0] = exact_pair(code_of_lane<kType, 0>(x), code_of_lane<kType, 1>(x));
  pairs[1] = exact_pair(code_of_lane<kType, 2>(x), code_of_lane<kType, 3>(x));
}

constexpr int kPairVectors = 1;

// Codes of two keys, column by column.
template <CodeType kType>
HWY_INLINE void pairs_of_keys(const char* even, const char* odd, VU (&pairs)[1]) {
  pairs[0] = exact_pair(code_vector<kType>(reinterpret_cast<const uint8_t*>(even)),
                        code_vector<kType>(reinterpret_cast<const uint8_t*>(odd)));
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
#endif
