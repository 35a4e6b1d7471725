// Transposing small blocks of f32 on the way from memory: four numbers of each of kLanes rows
// become four vectors. Values move, nothing is computed. Kernels layer.
#pragma once
#include "kernels/simd-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// 128 bits from each of lanes / 4 addresses: block k of the result is *(from + 4 * k * step).
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* from, ptrdiff_t step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    constexpr auto kHalf = static_cast<ptrdiff_t>(hn::MaxLanes(hn::Half<D>()));
    return hn::Combine(d, load_blocks(half, from + kHalf * step, step),
                       load_blocks(half, from, step));
  }
}

HWY_INLINE void store_vector(hn::Vec<hn::RepartitionToWide<F32>> v, char* to) {
  hn::StoreU(hn::BitCast(kF32, v), kF32, reinterpret_cast<float*>(to));
}

// to[i][lane] = from[lane * step + i] for i < 4; `to` has one vector every `to_bytes`.
HWY_INLINE void transpose_4(const float* from, ptrdiff_t step, char* to, ptrdiff_t to_bytes) {
  const hn::RepartitionToWide<F32> wide;
  const V a = load_blocks(kF32, from, step), b = load_blocks(kF32, from + step, step);
  const V c = load_blocks(kF32, from + 2 * step, step),
          d = load_blocks(kF32, from + 3 * step, step);
  const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(kF32, a, b));
  const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(kF32, a, b));
  const auto cd_low = hn::BitCast(wide, hn::InterleaveLower(kF32, c, d));
  const auto cd_high = hn::BitCast(wide, hn::InterleaveUpper(kF32, c, d));
  store_vector(hn::InterleaveLower(wide, ab_low, cd_low), to);
  store_vector(hn::InterleaveUpper(wide, ab_low, cd_low), to + to_bytes);
  store_vector(hn::InterleaveLower(wide, ab_high, cd_high), to + 2 * to_bytes);
  store_vector(hn::InterleaveUpper(wide, ab_high, cd_high), to + 3 * to_bytes);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
#endif
