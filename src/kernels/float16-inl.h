// 16-bit floats in kernels: elements as stored, one at a time and a vector at a time, widened to
// f32 or f64 (exact; f64 to f32 is rounded) and narrowed (nearest, ties to even; too large becomes
// infinity, NaN a quiet NaN) as quire/float16.h defines it. f32 and f64 elements go through the
// same functions, so that a kernel is written once for all types. Kernels layer.
#pragma once
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// 16-bit floats as stored.
struct Bf16Bits {
  uint16_t bits;
};
struct F16Bits {
  uint16_t bits;
};

template <class T, class E>
HWY_INLINE T widened(E x) {
  if constexpr (std::is_same_v<E, Bf16Bits>) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<E, F16Bits>) {
    // Exponent and mantissa moved to where f32 has them are the value times 2^-112, subnormals
    // included; all ones in the exponent are set again.
    const uint32_t magnitude = x.bits & 0x7fffu, sign = static_cast<uint32_t>(x.bits & 0x8000u)
                                                        << 16;
    const uint32_t moved = magnitude << 13;
    float value;
    std::memcpy(&value, &moved, 4);
    value *= 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (magnitude >= 0x7c00u) bits = 0x7f800000u | moved;
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<E, bool>) {
    return x ? T{1} : T{0};
  } else {
    return static_cast<T>(x);
  }
}

HWY_INLINE Bf16Bits narrowed_bf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

HWY_INLINE F16Bits narrowed_f16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 31 << 15;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {  // 2^16
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the results are multiples of 2^-24, the last bit of a float from 0.5 to 1: adding
    // 0.5 rounds there.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    result = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000u;
  } else {
    // The exponent's bias goes from 127 to 15; a carry out of the mantissa is the next exponent.
    result = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

// A float from which a 16-bit float is rounded as if from x itself: x rounded to odd. (A float has
// more than two bits more than either format, so the second rounding is the only one that counts.)
HWY_INLINE float rounded_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  uint32_t bits = __builtin_bit_cast(uint32_t, nearest);
  const double back = static_cast<double>(nearest);
  const bool inexact = back < x || back > x;  // false for NaN
  if (inexact && (bits & 1) == 0) {
    const bool away = (back > x) == (x > 0);  // `nearest` is further from 0
    bits += away ? uint32_t(-1) : 1;
  }
  return __builtin_bit_cast(float, bits);
}

template <class E>
HWY_INLINE E narrowed(float x) {
  if constexpr (std::is_same_v<E, Bf16Bits>)
    return narrowed_bf16(x);
  else if constexpr (std::is_same_v<E, F16Bits>)
    return narrowed_f16(x);
  else
    return static_cast<E>(x);
}
template <class E>
HWY_INLINE E narrowed(double x) {
  if constexpr (std::is_same_v<E, Bf16Bits> || std::is_same_v<E, F16Bits>)
    return narrowed<E>(rounded_to_odd(x));
  else
    return static_cast<E>(x);
}

// As many elements as D has lanes, to vectors of f32 or f64 and back.
template <class D, class E>
HWY_INLINE hn::Vec<D> load_widened(D d, const E* from) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<T, float>) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, widened<float>(*from));
#else
    if constexpr (std::is_same_v<E, double>) {
      return hn::Combine(d, hn::DemoteTo(hn::Half<D>(), hn::LoadU(kF64, from + kLanes / 2)),
                         hn::DemoteTo(hn::Half<D>(), hn::LoadU(kF64, from)));
    } else if constexpr (std::is_same_v<E, Bf16Bits>) {
      const hn::Rebind<uint16_t, D> narrow;
      const hn::RebindToUnsigned<D> wide;
      const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
    } else {
      const hn::Rebind<hwy::float16_t, D> narrow;
      return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
    }
#endif
  } else {
    return hn::PromoteTo(d, load_widened(hn::Rebind<float, D>(), from));
  }
}

template <class D, class E>
HWY_INLINE void store_narrowed(D d, hn::Vec<D> x, E* to) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    hn::StoreU(x, d, to);
  } else {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (std::is_same_v<T, float> && std::is_same_v<E, F16Bits>) {
      const hn::Rebind<hwy::float16_t, D> narrow;
      hn::StoreU(hn::DemoteTo(narrow, x), narrow, reinterpret_cast<hwy::float16_t*>(to));
      return;
    }
    if constexpr (std::is_same_v<T, float> && std::is_same_v<E, Bf16Bits>) {
      const hn::Rebind<uint16_t, D> narrow;
      const hn::RebindToUnsigned<D> wide;
      const auto bits = hn::BitCast(wide, x), half = hn::ShiftRight<16>(bits);
      const auto odd = hn::And(half, hn::Set(wide, 1u));
      const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(wide, 0x7fffu)), odd));
      const auto is_nan = hn::RebindMask(wide, hn::Ne(x, x));
      const auto result = hn::IfThenElse(is_nan, hn::Or(half, hn::Set(wide, 0x40u)), rounded);
      hn::StoreU(hn::TruncateTo(narrow, result), narrow, reinterpret_cast<uint16_t*>(to));
      return;
    }
#endif
    T lanes[hn::MaxLanes(D())];
    hn::StoreU(x, d, lanes);
    for (size_t i = 0; i < hn::MaxLanes(D()); ++i) to[i] = narrowed<E>(lanes[i]);
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
