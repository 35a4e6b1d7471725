// The f16 scales of a unit of keys, brought together as f32: the decode kernel loads those of all
// keys at once, or one of them. Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/coding/functions.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

inline void unit_scales(const UnitScalesArgs& args) noexcept {
  constexpr int kKeys = 16;
  const RowCoding& coding = args.coding;
  const int parts = coding.shift == CodeShift::kNone ? 1 : 2;
  const int step = coding.in_blocks ? code_bytes(coding, kCodeGroup) : 2 * parts;
#if HWY_TARGET <= HWY_AVX3
  const __m512i low = _mm512_loadu_si512(args.at), high = _mm512_loadu_si512(args.at + 8);
  for (int group = 0; group < args.groups; ++group) {
    // 4 bytes of each: its scale, and its minimum or codes behind it.
    const char* const offset = static_cast<const char*>(nullptr) + group * step;
    const __m512i bits =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_i64gather_epi32(low, offset, 1)),
                           _mm512_i64gather_epi32(high, offset, 1), 1);
    float* const to = args.out + group * parts * kKeys;
    _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)));
    if (parts == 2)
      _mm512_storeu_ps(to + kKeys,
                       _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16))));
  }
#else
  for (int group = 0; group < args.groups; ++group)
    for (int part = 0; part < parts; ++part)
      for (int key = 0; key < kKeys; ++key)
        args.out[(group * parts + part) * kKeys + key] =
            scale_at(coding, args.at[key] + group * step, part);
#endif
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
