// Products of pairs of 16-bit integers: integer_dot(a, b, acc) adds a0 * b0 + a1 * b1 of every
// 32-bit lane to acc, exactly. Sums live in vectors of f32 as bits, so that the loops of other
// products can carry them. Also the coding of f32 numbers as such integers, with one power of two
// for all of a row (attention_order.h). Kernels layer.
#pragma once
#include <cstring>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Makes g++ compute a vector here and keep it in a register. Also ends its reordering of sums.
#if HWY_TARGET != HWY_SCALAR
template <class Vector>
HWY_INLINE void in_register(Vector& x) {
#if HWY_TARGET == HWY_NEON
  asm("" : "+w"(x.raw));
#else
  asm("" : "+v"(x.raw));
#endif
}
#endif

// Vectors of integers of 16 bits.
#if HWY_TARGET != HWY_SCALAR
using Words = hn::Repartition<int16_t, F32>;
constexpr Words kWords;
constexpr int kWordLanes = 2 * static_cast<int>(kLanes);
#endif

HWY_INLINE V integer_dot(VU a, VU b, V acc) {
#if HWY_TARGET == HWY_SCALAR
  const auto product = [&](int shift) {
    return static_cast<int32_t>(static_cast<int16_t>(a.raw >> shift)) *
           static_cast<int32_t>(static_cast<int16_t>(b.raw >> shift));
  };
  return hn::BitCast(kF32, VI{hn::BitCast(kI32, acc).raw + product(0) + product(16)});
#elif HWY_TARGET == HWY_NEON
  const int16x8_t x = vreinterpretq_s16_u32(a.raw), y = vreinterpretq_s16_u32(b.raw);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  const int32x4_t high = vmull_s16(vget_high_s16(x), vget_high_s16(y));
  VI sum = hn::Add(hn::BitCast(kI32, acc), VI{vpaddq_s32(low, high)});
  in_register(sum);  // or g++ first adds products to each other and runs out of registers
  return hn::BitCast(kF32, sum);
#else
  // With intrinsics g++ adds products to each other first, or copies sums from register to
  // register.
#if defined(QUIRE_VNNI)
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
#elif HWY_TARGET == HWY_AVX2
  asm("vpaddd %1, %0, %0" : "+x"(acc.raw) : "x"(_mm256_madd_epi16(a.raw, b.raw)));
#else
  asm("vpaddd %1, %0, %0" : "+v"(acc.raw) : "v"(_mm512_madd_epi16(a.raw, b.raw)));
#endif
  return acc;
#endif
}

// The pair at `at` in every lane; any alignment.
HWY_INLINE VU pair_in_all_lanes(const void* at) {
  uint32_t pair;
  std::memcpy(&pair, at, sizeof(pair));
  return hn::Set(kU32, pair);
}

// The sum as a number, rounded.
HWY_INLINE V integer_sum(V acc) { return hn::ConvertTo(kF32, hn::BitCast(kI32, acc)); }

// A step of product-inl.h: two numbers of each factor.
struct IntegerProduct {
  using Element = uint32_t;
  using Sum = float;
  using Operand = VU;
  static HWY_INLINE VU load(const uint32_t* p) { return hn::LoadU(kU32, p); }
  static HWY_INLINE VU broadcast(const uint32_t* p) { return pair_in_all_lanes(p); }
  static HWY_INLINE V multiply_add(VU a, VU b, V acc) { return integer_dot(a, b, acc); }
};

// The magnitude of a number as bits, ordered as numbers are, with infinity and NaN on top.
HWY_INLINE VI magnitude_bits(V x) { return hn::BitCast(kI32, hn::Abs(x)); }

// How numbers become integers: times the largest power of two that leaves all of them within 32,639
// = 127 * 257, so that an integer is two signed bytes; `shift` bits less where both factors of a
// product were made integers.
struct IntegerCoding {
  V factor, inverse;  // inverse: NaN if a number is not finite
  M is_finite;

  explicit HWY_INLINE IntegerCoding(VI largest, int shift = 0) {
    const VI infinity = hn::Set(kI32, 0x7f800000);
    is_finite = hn::RebindMask(kF32, hn::Lt(largest, infinity));
    // What is added carries into the exponent where 2^14 times the mantissa is above 32,639.
    const VI next = hn::Add(hn::Min(largest, infinity), hn::Set(kI32, 0x101ff));
    // Exponents below 15, of numbers below 2^-112, would take the factor beyond the largest number.
    const VI exponent = hn::Max(hn::ShiftRight<23>(next), hn::Set(kI32, 15));
    factor = hn::BitCast(kF32, hn::ShiftLeft<23>(hn::Sub(hn::Set(kI32, 268 - shift), exponent)));
    const V power =
        hn::BitCast(kF32, hn::ShiftLeft<23>(hn::Sub(exponent, hn::Set(kI32, 14 - shift))));
    inverse = hn::IfThenElse(is_finite, power, hn::Set(kF32, __builtin_nanf("")));
  }

  // To the nearest, ties to even. Any integer if a number is not finite: `inverse` is NaN then.
  HWY_INLINE VI code(V x) const {
#if HWY_TARGET == HWY_SCALAR
    return hn::NearestInt(hn::Mul(hn::IfThenElseZero(is_finite, x), factor));
#elif HWY_TARGET == HWY_NEON
    return hn::NearestInt(hn::Mul(x, factor));
#elif HWY_TARGET == HWY_AVX2  // not Highway's, which looks for overflow
    return VI{_mm256_cvtps_epi32(hn::Mul(x, factor).raw)};
#else
    return VI{_mm512_cvtps_epi32(hn::Mul(x, factor).raw)};
#endif
  }
  HWY_INLINE VU pair(V even, V odd) const { return pair_of(code(even), code(odd)); }
  // Two integers as one number of 32 bits.
  static HWY_INLINE VU pair_of(VI even, VI odd) {
    const VU low = hn::BitCast(kU32, even);
    const VU high = hn::ShiftLeft<16>(hn::BitCast(kU32, odd));
#if HWY_TARGET == HWY_SCALAR
    return hn::Or(hn::And(low, hn::Set(kU32, 0xffffu)), high);
#else
    const hn::Repartition<uint16_t, U32> words;
    return hn::BitCast(kU32, hn::OddEven(hn::BitCast(words, high), hn::BitCast(words, low)));
#endif
  }
};

// The same for numbers that lie in memory one after the other, all under one power of two.
HWY_INLINE IntegerCoding coding_of(VI largest_of_lanes, int shift) {
  HWY_ALIGN int32_t lanes[kLanes];
  hn::Store(largest_of_lanes, kI32, lanes);
  int32_t largest = 0;
  for (size_t i = 0; i < kLanes; ++i) largest = HWY_MAX(largest, lanes[i]);
  return IntegerCoding(hn::Set(kI32, largest), shift);
}

// `count` numbers, a multiple of kLanes, to integers of 16 bits. Returns the power of two that
// takes them back.
inline float code_numbers(const float* from, int count, int shift, int16_t* to) noexcept {
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Rebind<int16_t, I32> narrow;
  VI largest = hn::Zero(kI32);
  for (int i = 0; i < count; i += kN)
    largest = hn::Max(largest, magnitude_bits(hn::LoadU(kF32, from + i)));
  const IntegerCoding coding = coding_of(largest, shift);
  for (int i = 0; i < count; i += kN)
    hn::StoreU(hn::DemoteTo(narrow, coding.code(hn::LoadU(kF32, from + i))), narrow, to + i);
  return hn::GetLane(coding.inverse);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
