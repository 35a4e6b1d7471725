// Products of bf16 pairs, one definition for each ISA that has the instruction: pair_dot(a, b, acc)
// adds a0 * b0 + a1 * b1 of every 32-bit lane to acc, and paired(even, odd) rounds two vectors of
// f32 to such lanes, the even one low. How the sum is rounded is the instruction's
// (attention_order.h). Highway 1.0 has no such operation at full speed. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/simd-inl.h"

#if defined(QUIRE_BF16_DOT)
HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET == HWY_NEON
static_assert(kLanes == 4);

// BFDOT: the order of a and b changes nothing.
HWY_INLINE V pair_dot(VU a, VU b, V acc) {
  return V{vbfdotq_f32(acc.raw, vreinterpretq_bf16_u32(a.raw), vreinterpretq_bf16_u32(b.raw))};
}

// The same with the pair at `b` in every lane; any alignment.
HWY_INLINE V pair_dot_with(VU a, const void* b, V acc) {
  uint32_t bits;
  std::memcpy(&bits, b, 4);
  return pair_dot(a, hn::Set(kU32, bits), acc);
}

HWY_INLINE VU paired(V even, V odd) {
  const bfloat16x8_t low = vcvtq_low_bf16_f32(even.raw), high = vcvtq_low_bf16_f32(odd.raw);
  return VU{
      vreinterpretq_u32_u16(vzip1q_u16(vreinterpretq_u16_bf16(low), vreinterpretq_u16_bf16(high)))};
}

#else
static_assert(kLanes == 16);

// vdpbf16ps.
HWY_INLINE V pair_dot(VU a, VU b, V acc) {
  return V{_mm512_dpbf16_ps(acc.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
}

// The same with the pair at `b` in every lane; any alignment. Inline assembly, because g++ 12 would
// load the pair into a register first.
HWY_INLINE V pair_dot_with(VU a, const void* b, V acc) {
  struct Pair {
    char bytes[4];
  };
  asm("vdpbf16ps %2%{1to16%}, %1, %0"
      : "+v"(acc.raw)
      : "v"(a.raw), "m"(*static_cast<const Pair*>(b)));
  return acc;
}

HWY_INLINE VU paired(V even, V odd) {
  // Word 2i of the result is word i of the lower vector (even), 2i + 1 of the upper (odd).
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = (__m512i)_mm512_cvtne2ps_pbh(odd.raw, even.raw);
  return VU{_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both)};
}
#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
#endif
