// Codes of keys and values to f32 inside the decode kernel, as decode-inl.h defines it: the same
// operations on the same numbers, in registers, where a unit is read. A format says where the codes
// of 32 channels lie in a row, how one is widened, and under which scales. Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/decode/columns-inl.h"
#include "kernels/decode/functions.h"
#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// Scales of the 16 keys of a unit (unit_scale_parts), f32: [parts][16]; of groups
// [group][parts][16]; of channels one for each (DecodeUnit::scales).
enum class UnitScale : uint8_t { kRow, kGroup, kChannel };

template <CodeType kCodeType, CodeShift kCodeShift, UnitScale kUnitScale>
struct CodedFormat {
  static constexpr CodeType kType = kCodeType;
  static constexpr CodeShift kShift = kCodeShift;
  static constexpr UnitScale kScale = kUnitScale;
  static constexpr bool kIsU4 = kType == CodeType::kU4;
  static constexpr int kParts = unit_scale_parts({.codes = kType, .shift = kShift});
  // In ggml's blocks, behind a scale in f16.
  static constexpr bool kInBlocks = kScale == UnitScale::kGroup && kShift == CodeShift::kNone;
  static constexpr int kGroupBytes = kIsU4 ? kCodeGroup / 2 : kCodeGroup;
  static constexpr int kGroupStep = kInBlocks ? kGroupBytes + 2 : kGroupBytes;

  static HWY_INLINE V number(V code, V scale, V other) {
    if constexpr (kType == CodeType::kE4M3) return fma(code, scale, other);
    return decoded<kShift>(code, scale, other);
  }
  // Where the codes of a group of 32 channels begin.
  static HWY_INLINE const char* group(const char* row, int i) {
    return row + i * kGroupStep + (kInBlocks ? 2 : 0);
  }
};

using Int8Format = CodedFormat<CodeType::kI8, CodeShift::kNone, UnitScale::kRow>;
using Int8ChannelFormat = CodedFormat<CodeType::kI8, CodeShift::kNone, UnitScale::kChannel>;
using U8Format = CodedFormat<CodeType::kU8, CodeShift::kZero, UnitScale::kRow>;
using Int4Format = CodedFormat<CodeType::kU4, CodeShift::kMinimum, UnitScale::kGroup>;
using E4M3Format = CodedFormat<CodeType::kE4M3, CodeShift::kNone, UnitScale::kRow>;
using E5M2Format = CodedFormat<CodeType::kE5M2, CodeShift::kNone, UnitScale::kRow>;
using Q8Format = CodedFormat<CodeType::kI8, CodeShift::kNone, UnitScale::kGroup>;
using Q4Format = CodedFormat<CodeType::kU4, CodeShift::kNone, UnitScale::kGroup>;

// Calls visit(Format()) for the format that is_direct has found.
template <class Visit>
HWY_INLINE void with_format(const RowCoding& coding, const Visit& visit) {
  if (coding.group == kCodeGroup) {
    if (coding.codes == CodeType::kI8) return visit(Q8Format());
    return coding.in_blocks ? visit(Q4Format()) : visit(Int4Format());
  }
  if (coding.group == 1) return visit(Int8ChannelFormat());
  switch (coding.codes) {
    case CodeType::kI8:
      return visit(Int8Format());
    case CodeType::kU8:
      return visit(U8Format());
    case CodeType::kE4M3:
      return visit(E4M3Format());
    default:
      return visit(E5M2Format());
  }
}

// fp8_e4m3: exponent and mantissa where an f32 has them are the value times 2^-120, without an
// exponent a denormal number, which a product would take long for. Added to kE4M3Base, which is
// exact, it is normal; scales are 2^120 times as large then, and E4M3Base times that is taken away
// in the same fma, so x is code * scale rounded once.
constexpr float kE4M3Base = 0x1p-110f;

// From the sign in bit 31 and all bits down to 27, and the magnitude below.
HWY_INLINE V e4m3_based(VI x) {
  const VU bits = hn::And(hn::BitCast(kU32, x), hn::Set(kU32, 0x87f00000u));
  const V sum = hn::Add(hn::BitCast(kF32, bits), hn::Set(kF32, kE4M3Base));
  const VU all = hn::Or(bits, hn::Set(kU32, 0x80000000u));
  const auto is_nan = hn::RebindMask(kF32, hn::Eq(all, hn::Set(kU32, 0x87f00000u)));
  return hn::IfThenElse(is_nan, hn::Set(kF32, std::numeric_limits<float>::quiet_NaN()), sum);
}

// fp8_e5m2: the upper half of an f16. Numbers without an exponent are 2 f less what f has too much.
HWY_INLINE V e5m2_value(VI x) {
  constexpr uint32_t kMagnitude = 0x7fu << 21, kSign = 0x80000000u;
  const VU bits = hn::And(hn::BitCast(kU32, x), hn::Set(kU32, kMagnitude | kSign));
  const VI magnitude = hn::BitCast(kI32, hn::And(bits, hn::Set(kU32, kMagnitude)));
  const V f = hn::BitCast(kF32, hn::Add(bits, hn::Set(kU32, 112u << 23)));
  const auto is_small = hn::RebindMask(kF32, hn::Lt(magnitude, hn::Set(kI32, 1 << 23)));
  const V one =
      hn::BitCast(kF32, hn::Or(hn::And(bits, hn::Set(kU32, kSign)), hn::Set(kU32, 113u << 23)));
  const V value = hn::IfThenElse(is_small, hn::Sub(hn::Add(f, f), one), f);
  // Exponents of infinity and NaN.
  const auto is_large = hn::RebindMask(kF32, hn::Gt(magnitude, hn::Set(kI32, (0x7c << 21) - 1)));
  const V large = hn::BitCast(kF32, hn::Or(bits, hn::Set(kU32, 0x7f800000u)));
  return hn::IfThenElse(is_large, large, value);
}

// The code in byte kByte of each lane.
template <CodeType kType, int kByte>
HWY_INLINE V byte_value(VU x) {
  if constexpr (kType == CodeType::kI8 || kType == CodeType::kU8) {
#if defined(QUIRE_VNNI)
    // A product with 1 in that byte and 0 in the others: one instruction instead of two shifts.
    const __m512i one = _mm512_set1_epi32(1 << (8 * kByte));
    const __m512i code = kType == CodeType::kI8
                             ? _mm512_dpbusd_epi32(_mm512_setzero_si512(), one, x.raw)
                             : _mm512_dpbusd_epi32(_mm512_setzero_si512(), x.raw, one);
    return hn::ConvertTo(kF32, VI{code});
#else
    const VU top = hn::ShiftLeft<24 - 8 * kByte>(x);
    if constexpr (kType == CodeType::kU8)
      return hn::ConvertTo(kF32, hn::BitCast(kI32, hn::ShiftRight<24>(top)));
    return hn::ConvertTo(kF32, hn::ShiftRight<24>(hn::BitCast(kI32, top)));
#endif
  } else {
    const VI top = hn::BitCast(kI32, hn::ShiftLeft<24 - 8 * kByte>(x));
    if constexpr (kType == CodeType::kE4M3) return e4m3_based(hn::ShiftRight<4>(top));
    return e5m2_value(hn::ShiftRight<3>(top));
  }
}

// kLanes codes side by side.
template <CodeType kType>
HWY_INLINE V bytes_value(const uint8_t* codes) {
  if constexpr (kType == CodeType::kE4M3) {
    const hn::Rebind<int8_t, F32> narrow;
    const VI wide = hn::PromoteTo(kI32, hn::LoadU(narrow, reinterpret_cast<const int8_t*>(codes)));
    return e4m3_based(hn::ShiftLeft<20>(wide));
  } else {
    return code_vector<kType>(codes);
  }
}

// The code in half byte kNibble of each lane, counted from -8 if nothing shifts it.
template <CodeShift kShift, int kNibble>
HWY_INLINE V nibble_value(VU x) {
  constexpr int kBias = kShift == CodeShift::kNone ? 8 : 0;
  return nibble_number<kBias>(hn::ShiftRight<4 * kNibble>(x));
}

#if HWY_TARGET <= HWY_AVX3
// 16 bytes of each of 16 keys: x[i][lane] = dword i of the key `lane`.
HWY_INLINE void load_quads(const char* const* rows, ptrdiff_t offset, VU (&x)[4]) {
  __m512i r[4];
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
    const auto at = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset));
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
}
#else
HWY_INLINE void load_quads(const char* const* rows, ptrdiff_t offset, VU (&x)[4]) {
  static_assert(kChunk == 4);
  WholeChunk whole;
  load_columns(whole, ListRows(rows, offset), x);
}
#endif

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

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
