// Codes of keys and values inside the decode kernel: the numbers that coding/decode-inl.h makes of
// them, by the same operations, but in registers, where a unit is read. A format says where the
// codes of a group of channels lie in a row, how they are widened, and under which scales. Kernels
// layer.
#pragma once
#include <cstring>

#include "kernels/coding/decode-inl.h"
#include "kernels/decode/columns-inl.h"
#include "kernels/decode/functions.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

enum class UnitScale : uint8_t { kRow, kGroup };

template <CodeType kCodeType, CodeShift kCodeShift, UnitScale kUnitScale>
struct CodedFormat {
  static constexpr CodeType kType = kCodeType;
  static constexpr CodeShift kShift = kCodeShift;
  static constexpr UnitScale kScale = kUnitScale;
  static constexpr bool kIsU4 = kType == CodeType::kU4;
  static constexpr int kParts = kShift == CodeShift::kNone ? 1 : 2;  // scale; zero point or minimum
  // In ggml's blocks, behind a scale in f16.
  static constexpr bool kInBlocks = kScale == UnitScale::kGroup && kShift == CodeShift::kNone;
  static constexpr int kGroupBytes = kIsU4 ? kCodeGroup / 2 : kCodeGroup;
  static constexpr int kGroupStep = kInBlocks ? kGroupBytes + 2 : kGroupBytes;
  // Channels in a piece, the 16 bytes that are loaded of each key at once.
  static constexpr int kPiece = kIsU4 ? kCodeGroup : kCodeGroup / 2;

  // Where the piece of a row begins whose first channel it is.
  static constexpr ptrdiff_t offset(int channel) {
    return channel / kCodeGroup * kGroupStep + (kInBlocks ? 2 : 0) + channel % kCodeGroup;
  }
};

using Int8Format = CodedFormat<CodeType::kI8, CodeShift::kNone, UnitScale::kRow>;
using U8Format = CodedFormat<CodeType::kU8, CodeShift::kZero, UnitScale::kRow>;
using Int4Format = CodedFormat<CodeType::kU4, CodeShift::kMinimum, UnitScale::kGroup>;
using E4M3Format = CodedFormat<CodeType::kE4M3, CodeShift::kNone, UnitScale::kRow>;
using E5M2Format = CodedFormat<CodeType::kE5M2, CodeShift::kNone, UnitScale::kRow>;
using Q8Format = CodedFormat<CodeType::kI8, CodeShift::kNone, UnitScale::kGroup>;
using Q4Format = CodedFormat<CodeType::kU4, CodeShift::kNone, UnitScale::kGroup>;

// Calls visit(Format()) for one of the formats that reads_codes (functions.h) names.
template <class Visit>
HWY_INLINE void with_format([[maybe_unused]] const RowCoding& coding, const Visit& visit) {
#if HWY_TARGET > HWY_AVX3
  return visit(Int8Format());
#else
  if (coding.group == kCodeGroup) {
    if (coding.codes == CodeType::kI8) return visit(Q8Format());
    return coding.in_blocks ? visit(Q4Format()) : visit(Int4Format());
  }
  switch (coding.codes) {
    case CodeType::kU8:
      return visit(U8Format());
#if defined(QUIRE_VBMI)
    case CodeType::kE4M3:
      return visit(E4M3Format());
    case CodeType::kE5M2:
      return visit(E5M2Format());
#endif
    default:
      return visit(Int8Format());
  }
#endif
}

// Whether with_format has a format: on narrow vectors int8 alone; scales of channels nowhere. In
// whole pieces of chains, and whole blocks of columns.
inline bool reads_codes(const RowCoding& coding, int columns, bool pairs) noexcept {
#if HWY_TARGET > HWY_AVX3
  if (pairs || coding.codes != CodeType::kI8 || coding.group != 0) return false;
#elif !defined(QUIRE_BF16_DOT)
  if (pairs) return false;
#endif
  if (columns % (2 * kCodeGroup) != 0) return false;
  const bool is_u4 = coding.codes == CodeType::kU4;
  if (coding.group == kCodeGroup) {
    if (is_u4 && chain_dims(columns, pairs) % kCodeGroup != 0) return false;
    if (coding.shift == CodeShift::kMinimum) return is_u4 && !coding.in_blocks;
    return coding.shift == CodeShift::kNone && coding.in_blocks &&
           (is_u4 || coding.codes == CodeType::kI8);
  }
  if (coding.group == 1) return false;
  if (coding.codes == CodeType::kU8) return coding.shift == CodeShift::kZero;
  if (coding.shift != CodeShift::kNone) return false;
#if defined(QUIRE_VBMI)
  if (coding.codes == CodeType::kE4M3 || coding.codes == CodeType::kE5M2) return true;
#endif
  return coding.codes == CodeType::kI8;
}
constexpr auto kReadsCodes = &reads_codes;

// 16 bytes of each of kLanes keys: x[i][lane] = dword i of the key `lane`.
HWY_INLINE void load_piece(const ListRows& rows, VU (&x)[4]) {
#if HWY_TARGET <= HWY_AVX3
  __m512i r[4];
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
    const auto at = [&](int row) HWY_ATTR {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.row(row)));
    };
    r[i] = _mm512_castsi128_si512(at(i));
    r[i] = _mm512_inserti32x4(r[i], at(i + 4), 1);
    r[i] = _mm512_inserti32x4(r[i], at(i + 8), 2);
    r[i] = _mm512_inserti32x4(r[i], at(i + 12), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
  const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
  x[0] = VU{_mm512_unpacklo_epi64(a, c)};
  x[1] = VU{_mm512_unpackhi_epi64(a, c)};
  x[2] = VU{_mm512_unpacklo_epi64(b, d)};
  x[3] = VU{_mm512_unpackhi_epi64(b, d)};
#else
  static_assert(kChunk == 4);
  WholeChunk whole;
  load_columns(whole, rows, x);
#endif
}

#if defined(QUIRE_VBMI)
// bf16 has all numbers of fp8: halves of the magnitudes' bits, found by a table of 128 bytes.
template <CodeType kType>
struct Fp8Tables {
  alignas(64) uint8_t low[128], high[128];

  static constexpr uint32_t bf16(int code) {
    constexpr int kMantissa = kType == CodeType::kE4M3 ? 3 : 2;
    constexpr int kBias = kType == CodeType::kE4M3 ? 7 : 15;
    int exponent = code >> kMantissa, mantissa = code & ((1 << kMantissa) - 1);
    if (kType == CodeType::kE4M3 ? code == 0x7f : code > 0x7c) return 0x7fc0;  // NaN
    if (kType == CodeType::kE5M2 && code == 0x7c) return 0x7f80;
    if (exponent == 0) {
      if (mantissa == 0) return 0;
      for (exponent = 1; mantissa >> kMantissa == 0; mantissa *= 2) --exponent;
      mantissa &= (1 << kMantissa) - 1;
    }
    return static_cast<uint32_t>(exponent - kBias + 127) << 7 | static_cast<uint32_t>(mantissa)
                                                                    << (7 - kMantissa);
  }
  constexpr Fp8Tables() : low(), high() {
    for (int i = 0; i < 128; ++i) {
      low[i] = static_cast<uint8_t>(bf16(i) & 0xff);
      high[i] = static_cast<uint8_t>(bf16(i) >> 8);
    }
  }
};

// Where the halves go: in lane i, bytes 2 and 3 are those of byte 4 i + byte.
struct Fp8Places {
  alignas(64) uint8_t of[4][64];
  constexpr Fp8Places() : of() {
    for (int byte = 0; byte < 4; ++byte)
      for (int i = 0; i < 64; ++i)
        of[byte][i] = static_cast<uint8_t>(i / 4 * 4 + byte + (i % 4 == 3 ? 64 : 0));
  }
};

template <CodeType kType>
HWY_INLINE void fp8_values(VU x, V (&f)[4]) {
  static constexpr Fp8Tables<kType> kTables;
  static constexpr Fp8Places kPlaces;
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kTables.low), x.raw,
                                               _mm512_load_si512(kTables.low + 64));
  __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(kTables.high), x.raw,
                                          _mm512_load_si512(kTables.high + 64));
  high = _mm512_ternarylogic_epi32(high, x.raw, _mm512_set1_epi8(-128), 0xf8);  // high | x & sign
  constexpr __mmask64 kUpperHalves = 0xccccccccccccccccull;
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) f[i] = V{_mm512_castsi512_ps(
      _mm512_maskz_permutex2var_epi8(kUpperHalves, low, _mm512_load_si512(kPlaces.of[i]), high))};
}
#endif

// The code in byte kByte of each lane.
template <CodeType kType, int kByte>
HWY_INLINE V byte_value(VU x) {
  const VU top = hn::ShiftLeft<24 - 8 * kByte>(x);
  if constexpr (kType == CodeType::kU8)
    return hn::ConvertTo(kF32, hn::BitCast(kI32, hn::ShiftRight<24>(top)));
  return hn::ConvertTo(kF32, hn::ShiftRight<24>(hn::BitCast(kI32, top)));
}

// Four codes: those in the bytes of x, or in their low or high halves.
template <class Format, bool kHigh>
HWY_INLINE void code_values(VU x, V (&f)[4]) {
  constexpr CodeType kType = Format::kType;
  if constexpr (Format::kIsU4) {
    constexpr int kBias = Format::kShift == CodeShift::kNone ? 8 : 0, kFirst = kHigh ? 4 : 0;
    f[0] = nibble_number<kBias>(hn::ShiftRight<kFirst>(x));
    f[1] = nibble_number<kBias>(hn::ShiftRight<8 + kFirst>(x));
    f[2] = nibble_number<kBias>(hn::ShiftRight<16 + kFirst>(x));
    f[3] = nibble_number<kBias>(hn::ShiftRight<24 + kFirst>(x));
#if defined(QUIRE_VBMI)
  } else if constexpr (kType == CodeType::kE4M3 || kType == CodeType::kE5M2) {
    fp8_values<kType>(x, f);
#endif
  } else {
    f[0] = byte_value<kType, 0>(x);
    f[1] = byte_value<kType, 1>(x);
    f[2] = byte_value<kType, 2>(x);
    f[3] = byte_value<kType, 3>(x);
  }
}

// The scales of the keys of a unit, brought together: [parts][16], of groups [group][parts][16].
template <class Format>
class UnitScales {
 public:
  // Keys [begin, end) of the unit.
  HWY_INLINE void collect(const DecodeUnit& unit, ptrdiff_t scale_step, int begin, int end,
                          int columns) {
    const int groups = columns / kCodeGroup;
    if constexpr (Format::kInBlocks) {
      blocks(unit.rows, begin, end, groups);
    } else if (unit.scale_at == nullptr) {
      some(unit.scale_rows, begin, end, groups);
    } else if (Format::kScale == UnitScale::kRow && Format::kParts == 1 && scale_step == 4) {
      at_ = reinterpret_cast<const float*>(unit.scale_at);
    } else {
      const char* rows[kUnitKeys];
      for (int key = 0; key < kUnitKeys; ++key) rows[key] = unit.scale_at + key * scale_step;
      some(rows, begin, end, groups);
    }
  }

  // Part `part` of the keys from `key` on.
  HWY_INLINE const float* of(int group, int part, int key) const {
    if constexpr (Format::kScale == UnitScale::kGroup) part += group * Format::kParts;
    return at_ + part * kUnitKeys + key;
  }

 private:
  static constexpr int kMost =
      (Format::kScale == UnitScale::kGroup ? kMostHeadDim / kCodeGroup : 1) * Format::kParts *
      kUnitKeys;

  static HWY_INLINE void widen(const uint16_t* halves, float* to) {
    const hn::Rebind<hwy::float16_t, F32> narrow;
    QUIRE_UNROLL for (int i = 0; i < kUnitKeys; i += static_cast<int>(kLanes)) hn::StoreU(
        hn::PromoteTo(kF32, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(halves + i))),
        kF32, to + i);
  }

  HWY_INLINE void blocks(const char* const* rows, int begin, int end, int groups) {
    HWY_ALIGN uint16_t halves[kMost];
    if (end - begin < kUnitKeys) std::memset(halves, 0, sizeof(uint16_t) * groups * kUnitKeys);
    for (int key = begin; key < end; ++key) {
      const char* from = rows[key];
      for (int group = 0; group < groups; ++group, from += Format::kGroupStep)
        std::memcpy(halves + group * kUnitKeys + key, from, 2);
    }
    for (int group = 0; group < groups; ++group)
      widen(halves + group * kUnitKeys, numbers_ + group * kUnitKeys);
  }

  HWY_INLINE void some(const char* const* scales, int begin, int end, int groups) {
    if constexpr (Format::kScale == UnitScale::kRow) {
      for (int key = begin; key < end; ++key)
        for (int part = 0; part < Format::kParts; ++part)
          std::memcpy(numbers_ + part * kUnitKeys + key, scales[key] + 4 * part, 4);
      return;
    }
    int group = 0;
#if HWY_TARGET <= HWY_AVX3
    // The scale and the minimum of a group are a dword.
    for (; group + 4 <= groups && begin == 0 && end == kUnitKeys; group += 4) {
      VU x[4];
      load_piece({scales, 4 * group}, x);
      QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
        float* const to = numbers_ + (group + i) * 2 * kUnitKeys;
        _mm512_store_ps(to, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x[i].raw)));
        _mm512_store_ps(to + kUnitKeys,
                        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x[i].raw, 16))));
      }
    }
#endif
    for (; group < groups; ++group) {
      HWY_ALIGN uint16_t halves[2][kUnitKeys] = {};
      for (int key = begin; key < end; ++key) {
        std::memcpy(&halves[0][key], scales[key] + 4 * group, 2);
        std::memcpy(&halves[1][key], scales[key] + 4 * group + 2, 2);
      }
      widen(halves[0], numbers_ + group * 2 * kUnitKeys);
      widen(halves[1], numbers_ + (group * 2 + 1) * kUnitKeys);
    }
  }

  HWY_ALIGN float numbers_[kMost];
  const float* at_ = numbers_;
};

// Rows of a unit ahead are asked for one after the other, all lines of each.
struct AheadRows {
  const UnitAhead *near, *far;
  int next = 0;
  HWY_INLINE void take(int count) {
    for (const int end = HWY_MIN(next + count, kUnitKeys); next < end; ++next) {
      for (int line = 0; line < near->lines; ++line)
        __builtin_prefetch(row(*near, next) + 64 * line, 0, 3);
      for (int line = 0; line < far->lines; ++line)
        __builtin_prefetch(row(*far, next) + 64 * line, 0, 2);
    }
  }
  static HWY_INLINE const char* row(const UnitAhead& unit, int i) {
    return unit.rows != nullptr ? unit.rows[i] : unit.at + i * unit.step;
  }
};

#else
constexpr bool (*kReadsCodes)(const RowCoding&, int, bool) noexcept = nullptr;
#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
