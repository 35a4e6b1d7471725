// RowCoding: how the codes of a row of keys or values become numbers; RowScales: where the scales
// of rows lie. Plain data, filled in by quant/ and plan/. Kernels layer.
//
// A number is decoded in f32, each step rounded: c = the code's value, exact; with a zero point c
// -= zero; x = c * scale; with a minimum x += minimum. What follows computes with x as with any f32
// (attention_order.h), so attention over codes has the bits of attention over what they decode to.
// Codes that are multiplied as bf16 keep their scales apart (attention_order.h, are_bf16_codes).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention_order.h"

namespace quire::kernels {

enum class CodeType : uint8_t {
  kNone,  // no codes: numbers of a dtype
  kI8,
  kU8,
  kU4,    // 0..15. Of 32 channels in 16 bytes, byte i holds channel i low and channel 16 + i high
  kE4M3,  // fp8 without infinity: 0x7f and 0xff are NaN
  kE5M2   // fp8, the upper half of an f16
};

enum class CodeShift : uint8_t {
  kNone,    // no shift; codes of 4 bits count from -8
  kZero,    // a zero point after each scale: (code - zero) * scale
  kMinimum  // a minimum after each scale: code * scale + minimum
};

/// Channels that share a scale in formats with groups; also the unit in which 4 bits are packed.
inline constexpr int kCodeGroup = 32;

struct RowCoding {
  CodeType codes = CodeType::kNone;
  CodeShift shift = CodeShift::kNone;
  /// Channels that share a scale: 0 all of a row, 1 none, else kCodeGroup.
  int group = 0;
  bool f16_scales = false;  // otherwise f32
  /// Each group is its f16 scale followed by its codes, as in ggml; there are no separate scales.
  bool in_blocks = false;
  /// Numbers a rotation mixes (rotate.h); 0 or 1: none.
  int rotation = 0;

  friend bool operator==(const RowCoding&, const RowCoding&) = default;
};

constexpr bool is_coded(const RowCoding& coding) { return coding.codes != CodeType::kNone; }

/// Codes of one byte that bf16 represents exactly, under one scale for all of a row: products with
/// them can be products of bf16 pairs, and the scale a factor of the score, or of the weight.
constexpr bool are_bf16_codes(const RowCoding& coding) {
  const bool is_exact = coding.codes == CodeType::kI8 || coding.codes == CodeType::kE4M3 ||
                        coding.codes == CodeType::kE5M2;
  return is_exact && coding.shift == CodeShift::kNone && coding.group == 0 && !coding.f16_scales;
}

/// Codes that can be multiplied as integers: as they are, under one scale for all of a row, which
/// is a factor of the score, or of the weight ..
constexpr bool are_exact_integers(const RowCoding& coding) {
  return coding.codes == CodeType::kI8 && coding.group == 0;
}
/// .. or as integers that a row's scales make of them (attention_order.h).
constexpr bool become_integers(const RowCoding& coding) {
  const bool is_integer = coding.codes == CodeType::kI8 || coding.codes == CodeType::kU8 ||
                          coding.codes == CodeType::kU4;
  return is_integer && !are_exact_integers(coding);
}

/// By how many bits queries, or weights, are shorter as integers.
constexpr int integer_query_shift(const RowCoding& keys, int dims) {
  return become_integers(keys) ? row_query_shift(dims) : 0;
}
constexpr int integer_weight_shift(const RowCoding& values) {
  return become_integers(values) ? kRowWeightShift : 0;
}

/// Groups of channels under one scale in a row of `columns`.
constexpr int code_groups(const RowCoding& coding, int columns) {
  return coding.group == 0 ? 1 : columns / coding.group;
}

/// Scales beside the codes: row `i` of a span at data + (offset of the span + i * row_step).
struct RowScales {
  const void* data = nullptr;
  ptrdiff_t row_step = 0;  // in scales
};

/// Bytes of the codes of `columns` channels, scales in blocks included.
constexpr int code_bytes(const RowCoding& coding, int columns) {
  const int codes = coding.codes == CodeType::kU4 ? columns / 2 : columns;
  return coding.in_blocks ? codes + columns / kCodeGroup * 2 : codes;
}

constexpr int scale_bytes(const RowCoding& coding) { return coding.f16_scales ? 2 : 4; }

/// Scales in f32 of rows, `step` bytes apart.
inline void copy_scales(const char* from, ptrdiff_t step, int count, float* to) noexcept {
  if (step == 4) {
    std::memcpy(to, from, static_cast<size_t>(count) * 4);
    return;
  }
  if (step == 0) {  // one for all
    float scale;
    std::memcpy(&scale, from, 4);
    for (int i = 0; i < count; ++i) to[i] = scale;
    return;
  }
  for (int i = 0; i < count; ++i, from += step) std::memcpy(to + i, from, 4);
}

}  // namespace quire::kernels
