// Codes of keys and values to f32, a row at a time, as row_coding.h defines it: the same operations
// whether on vectors or number by number. f64 rows are f32 rows widened. Kernels layer.
#pragma once
#include <limits>

#include "kernels/attention_order.h"
#include "kernels/coding/functions.h"
#include "kernels/float16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// The value of one code.
template <CodeType kType>
HWY_INLINE float code_value(uint8_t code) {
  if constexpr (kType == CodeType::kI8) return static_cast<float>(static_cast<int8_t>(code));
  if constexpr (kType == CodeType::kU8) return static_cast<float>(code);
  const uint16_t wide = code;
  if constexpr (kType == CodeType::kE5M2)
    return widened<float>(F16Bits{static_cast<uint16_t>(wide << 8)});
  // Exponent and mantissa where an f16 has them are the value times 2^-8.
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const auto bits = static_cast<uint16_t>((wide & 0x80) << 8 | (wide & 0x7f) << 7);
  return widened<float>(F16Bits{bits}) * 256.0f;
}

template <CodeShift kShift>
HWY_INLINE float decoded(float code, float scale, float other) {
  if constexpr (kShift == CodeShift::kZero) return (code - other) * scale;
  const float x = code * scale;
  if constexpr (kShift == CodeShift::kMinimum) return x + other;
  return x;
}

HWY_INLINE float scale_at(const RowCoding& coding, const char* scales, int i) {
  if (coding.f16_scales) {
    F16Bits half;
    std::memcpy(&half, scales + 2 * i, 2);
    return widened<float>(half);
  }
  float scale;
  std::memcpy(&scale, scales + 4 * i, 4);
  return scale;
}

#if HWY_TARGET != HWY_SCALAR

// The values of kLanes codes.
template <CodeType kType>
HWY_INLINE V code_vector(const uint8_t* codes) {
  if constexpr (kType == CodeType::kI8) {
    const hn::Rebind<int8_t, F32> narrow;
    return hn::ConvertTo(
        kF32, hn::PromoteTo(kI32, hn::LoadU(narrow, reinterpret_cast<const int8_t*>(codes))));
  } else if constexpr (kType == CodeType::kU8) {
    const hn::Rebind<uint8_t, F32> narrow;
    return hn::ConvertTo(kF32, hn::PromoteTo(kI32, hn::LoadU(narrow, codes)));
  } else {
    const hn::Rebind<uint8_t, F32> narrow;
    const hn::Rebind<uint16_t, F32> wide;
    const hn::Rebind<hwy::float16_t, F32> half;
    const auto x = hn::PromoteTo(wide, hn::LoadU(narrow, codes));
    if constexpr (kType == CodeType::kE5M2) {
      return hn::PromoteTo(kF32, hn::BitCast(half, hn::ShiftLeft<8>(x)));
    } else {
      const auto sign = hn::And(hn::ShiftLeft<8>(x), hn::Set(wide, 0x8000));
      const auto magnitude = hn::And(x, hn::Set(wide, 0x7f));
      const auto bits = hn::Or(sign, hn::ShiftLeft<7>(magnitude));
      const auto is_nan = hn::Eq(magnitude, hn::Set(wide, 0x7f));
      const auto nan = hn::IfThenElse(is_nan, hn::Set(wide, 0x7e00), bits);
      return hn::Mul(hn::PromoteTo(kF32, hn::BitCast(half, nan)), hn::Set(kF32, 256.0f));
    }
  }
}

template <CodeShift kShift>
HWY_INLINE V decoded(V code, V scale, V other) {
  if constexpr (kShift == CodeShift::kZero) return hn::Mul(hn::Sub(code, other), scale);
  const V x = hn::Mul(code, scale);
  if constexpr (kShift == CodeShift::kMinimum) return hn::Add(x, other);
  return x;
}

HWY_INLINE V scale_vector(const RowCoding& coding, const char* scales, int i) {
  if (coding.f16_scales) {
    const hn::Rebind<uint16_t, F32> bits;
    const hn::Rebind<hwy::float16_t, F32> half;
    uint16_t number;
    std::memcpy(&number, scales + 2 * i, 2);
    return hn::PromoteTo(kF32, hn::BitCast(half, hn::Set(bits, number)));
  }
  float number;
  std::memcpy(&number, scales + 4 * i, 4);
  return hn::Set(kF32, number);
}

// The low and the high codes of kLanes bytes of 4-bit codes, counted from -8 if nothing shifts
// them.
template <CodeShift kShift>
HWY_INLINE void nibble_vectors(const uint8_t* codes, V& low, V& high) {
  constexpr int kBias = kShift == CodeShift::kNone ? 8 : 0;
  const hn::Rebind<uint8_t, U32> narrow;
  const VU x = hn::PromoteTo(kU32, hn::LoadU(narrow, codes));
#if HWY_TARGET <= HWY_AVX3
  // A table of 16 numbers, found by the low 4 bits.
  HWY_ALIGN static constexpr float kNumbers[] = {
      0 - kBias, 1 - kBias, 2 - kBias,  3 - kBias,  4 - kBias,  5 - kBias,  6 - kBias,  7 - kBias,
      8 - kBias, 9 - kBias, 10 - kBias, 11 - kBias, 12 - kBias, 13 - kBias, 14 - kBias, 15 - kBias};
  const __m512 table = _mm512_load_ps(kNumbers);
  low = V{_mm512_permutexvar_ps(x.raw, table)};
  high = V{_mm512_permutexvar_ps(hn::ShiftRight<4>(x).raw, table)};
#else
  const auto number = [](VU bits) {
    const VI code = hn::Sub(hn::BitCast(kI32, bits), hn::Set(kI32, kBias));
    return hn::ConvertTo(kF32, code);
  };
  low = number(hn::And(x, hn::Set(kU32, 15)));
  high = number(hn::ShiftRight<4>(x));
#endif
}

#endif

// Channels [0, count) under one scale.
template <CodeType kType, CodeShift kShift>
HWY_INLINE void decode_run(const RowCoding& coding, const uint8_t* codes, const char* scales,
                           int count, float* HWY_RESTRICT out) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  const V scale = scale_vector(coding, scales, 0);
  const V other = kShift == CodeShift::kNone ? scale : scale_vector(coding, scales, 1);
  if constexpr (kType == CodeType::kU4) {
    for (; c < count; c += kCodeGroup, codes += kCodeGroup / 2) {
      QUIRE_UNROLL for (int i = 0; i < kCodeGroup / 2; i += kN) {
        V low, high;
        nibble_vectors<kShift>(codes + i, low, high);
        hn::StoreU(decoded<kShift>(low, scale, other), kF32, out + c + i);
        hn::StoreU(decoded<kShift>(high, scale, other), kF32, out + c + kCodeGroup / 2 + i);
      }
    }
    return;
  } else {
    for (; c + kN <= count; c += kN)
      hn::StoreU(decoded<kShift>(code_vector<kType>(codes + c), scale, other), kF32, out + c);
    if (c == count) return;
  }
#endif
  const float one = scale_at(coding, scales, 0);
  const float shift = kShift == CodeShift::kNone ? 0 : scale_at(coding, scales, 1);
  if constexpr (kType == CodeType::kU4) {
    constexpr int kBias = kShift == CodeShift::kNone ? 8 : 0;
    for (; c < count; ++c) {
      const int at = c % kCodeGroup, byte = c / kCodeGroup * kCodeGroup / 2 + at % 16;
      const int code = at < 16 ? codes[byte] & 15 : codes[byte] >> 4;
      out[c] = decoded<kShift>(static_cast<float>(code - kBias), one, shift);
    }
  } else {
    for (; c < count; ++c) out[c] = decoded<kShift>(code_value<kType>(codes[c]), one, shift);
  }
}

// Each channel under its own scale; these are f32.
template <CodeType kType>
HWY_INLINE void decode_channels(const RowCoding& coding, const uint8_t* codes, const char* scales,
                                int count, float* HWY_RESTRICT out) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Repartition<uint8_t, F32> bytes;
  for (; c + kN <= count; c += kN) {
    const V scale =
        hn::BitCast(kF32, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(scales + 4 * c)));
    hn::StoreU(hn::Mul(code_vector<kType>(codes + c), scale), kF32, out + c);
  }
#endif
  for (; c < count; ++c) out[c] = code_value<kType>(codes[c]) * scale_at(coding, scales, c);
}

template <CodeType kType, CodeShift kShift>
HWY_NOINLINE void decode_rows_of(const DecodeRowsArgs<float>& args) {
  const RowCoding coding = args.coding;
  const char* from = args.codes;
  const char* scales = args.scales;
  float* out = args.out;
  for (int row = 0; row < args.rows; ++row) {
    const auto* codes = reinterpret_cast<const uint8_t*>(from);
    if (coding.group == 0) {
      decode_run<kType, kShift>(coding, codes, scales, args.columns, out);
    } else if (coding.group == 1) {
      if constexpr (kType != CodeType::kU4 && kShift == CodeShift::kNone)
        decode_channels<kType>(coding, codes, scales, args.columns, out);
    } else {
      constexpr int kBytes = kType == CodeType::kU4 ? kCodeGroup / 2 : kCodeGroup;
      constexpr int kScales = kShift == CodeShift::kNone ? 1 : 2;
      const int step = coding.in_blocks ? kBytes + 2 : kBytes;
      const char* scale = coding.in_blocks ? from : scales;
      const int scale_step = coding.in_blocks ? step : kScales * scale_bytes(coding);
      if (coding.in_blocks) codes += 2;
      for (int c = 0; c < args.columns; c += kCodeGroup, codes += step, scale += scale_step)
        decode_run<kType, kShift>(coding, codes, scale, kCodeGroup, out + c);
    }
    for (int c = args.columns; c < args.out_columns; ++c) out[c] = 0;
    from += args.code_step;
    scales += args.scale_step;
    out += args.out_step;
  }
}

template <CodeType kType>
void decode_rows_shifted(const DecodeRowsArgs<float>& args) {
  switch (args.coding.shift) {
    case CodeShift::kNone:
      return decode_rows_of<kType, CodeShift::kNone>(args);
    case CodeShift::kZero:
      return decode_rows_of<kType, CodeShift::kZero>(args);
    case CodeShift::kMinimum:
      return decode_rows_of<kType, CodeShift::kMinimum>(args);
  }
}

inline void decode_rows_f32(const DecodeRowsArgs<float>& args) noexcept {
  switch (args.coding.codes) {
    case CodeType::kNone:
      return;
    case CodeType::kI8:
      return decode_rows_shifted<CodeType::kI8>(args);
    case CodeType::kU8:
      return decode_rows_shifted<CodeType::kU8>(args);
    case CodeType::kU4:
      return decode_rows_shifted<CodeType::kU4>(args);
    case CodeType::kE4M3:
      return decode_rows_shifted<CodeType::kE4M3>(args);
    case CodeType::kE5M2:
      return decode_rows_shifted<CodeType::kE5M2>(args);
  }
}

inline void decode_rows_f64(const DecodeRowsArgs<double>& args) noexcept {
  float numbers[kMostHeadDim];
  DecodeRowsArgs<float> row{.coding = args.coding,
                            .codes = args.codes,
                            .scales = args.scales,
                            .rows = 1,
                            .columns = args.columns,
                            .out = numbers};
  double* out = args.out;
  for (int i = 0; i < args.rows; ++i, out += args.out_step) {
    decode_rows_f32(row);
    for (int c = 0; c < args.columns; ++c) out[c] = static_cast<double>(numbers[c]);
    for (int c = args.columns; c < args.out_columns; ++c) out[c] = 0;
    row.codes += args.code_step;
    row.scales += args.scale_step;
  }
}

template <CodeType kType>
void widen_rows_of(const DecodeRowsArgs<uint16_t>& args) {
  const char* from = args.codes;
  uint16_t* out = args.out;
  for (int row = 0; row < args.rows; ++row, from += args.code_step, out += args.out_step) {
    const auto* codes = reinterpret_cast<const uint8_t*>(from);
    int c = 0;
#if HWY_TARGET != HWY_SCALAR
    constexpr int kN = static_cast<int>(kLanes);
    const hn::Rebind<uint16_t, U32> narrow;
    for (; c + kN <= args.columns; c += kN) {
      const VU bits = hn::BitCast(kU32, code_vector<kType>(codes + c));
      hn::StoreU(hn::TruncateTo(narrow, hn::ShiftRight<16>(bits)), narrow, out + c);
    }
#endif
    for (; c < args.columns; ++c) out[c] = narrowed_bf16(code_value<kType>(codes[c])).bits;
    for (; c < args.out_columns; ++c) out[c] = 0;
  }
}

inline void widen_rows_bf16(const DecodeRowsArgs<uint16_t>& args) noexcept {
  if (args.coding.codes == CodeType::kI8) return widen_rows_of<CodeType::kI8>(args);
  if (args.coding.codes == CodeType::kE4M3) return widen_rows_of<CodeType::kE4M3>(args);
  widen_rows_of<CodeType::kE5M2>(args);
}

// A weight times the scale of its code. A weight of 0 stays 0, whatever the scale is.
HWY_INLINE V weight_of_codes(V weight, V scale) {
  return hn::IfThenElseZero(hn::Ne(weight, hn::Zero(kF32)), hn::Mul(weight, scale));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
