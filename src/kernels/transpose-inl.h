// Transposing small blocks of f32 on the way from memory: four numbers of each of kLanes rows
// become four vectors, or whole lines become as many vectors. Values move, nothing is computed.
// Kernels layer.
#pragma once
#include "kernels/simd-inl.h"
#include "kernels/tile/tile_program.h"

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

template <class Vector>
HWY_INLINE void store_vector(Vector v, char* to) {
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

// to[i][lane] = from[lane * step + i] for i < kTransposeColumns. With 16 lanes every line is read
// once and whole: where rows are a multiple of 4 KiB apart, 16 of their lines are too many for a
// set of L1, and reading them in quarters means reading them four times from L2.
#if HWY_TARGET <= HWY_AVX3

constexpr int kTransposeColumns = 16;

// In a register: g++ would load it a second time for a second use.
HWY_INLINE V load_line(const float* from) {
  V x = hn::LoadU(kF32, from);
  asm("" : "+v"(x.raw));
  return x;
}
template <int kBlocks>
HWY_INLINE V shuffle_blocks(V a, V b) {
  return V{_mm512_shuffle_f32x4(a.raw, b.raw, kBlocks)};
}

HWY_INLINE void transpose_block(const float* from, ptrdiff_t step, char* to, ptrdiff_t to_bytes) {
  const hn::RepartitionToWide<F32> wide;
  V quad[4][4];  // block k of quad[j][i]: column 4 k + i of rows 4 j .. 4 j + 3
  QUIRE_UNROLL for (int j = 0; j < 4; ++j, from += 4 * step) {
    asm("" : "+r"(from));  // one pointer, not sixteen that do not fit into registers
    const V a = load_line(from), b = load_line(from + step);
    const V c = load_line(from + 2 * step), d = load_line(from + 3 * step);
    const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(kF32, a, b));
    const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(kF32, a, b));
    const auto cd_low = hn::BitCast(wide, hn::InterleaveLower(kF32, c, d));
    const auto cd_high = hn::BitCast(wide, hn::InterleaveUpper(kF32, c, d));
    quad[j][0] = hn::BitCast(kF32, hn::InterleaveLower(wide, ab_low, cd_low));
    quad[j][1] = hn::BitCast(kF32, hn::InterleaveUpper(wide, ab_low, cd_low));
    quad[j][2] = hn::BitCast(kF32, hn::InterleaveLower(wide, ab_high, cd_high));
    quad[j][3] = hn::BitCast(kF32, hn::InterleaveUpper(wide, ab_high, cd_high));
  }
  QUIRE_UNROLL for (int i = 0; i < 4; ++i, to += to_bytes) {
    asm("" : "+r"(to));
    const V low_a = shuffle_blocks<0x44>(quad[0][i], quad[1][i]);
    const V low_b = shuffle_blocks<0x44>(quad[2][i], quad[3][i]);
    const V high_a = shuffle_blocks<0xee>(quad[0][i], quad[1][i]);
    const V high_b = shuffle_blocks<0xee>(quad[2][i], quad[3][i]);
    store_vector(shuffle_blocks<0x88>(low_a, low_b), to);
    store_vector(shuffle_blocks<0xdd>(low_a, low_b), to + 4 * to_bytes);
    store_vector(shuffle_blocks<0x88>(high_a, high_b), to + 8 * to_bytes);
    store_vector(shuffle_blocks<0xdd>(high_a, high_b), to + 12 * to_bytes);
  }
}

#else

constexpr int kTransposeColumns = 4;

HWY_INLINE void transpose_block(const float* from, ptrdiff_t step, char* to, ptrdiff_t to_bytes) {
  transpose_4(from, step, to, to_bytes);
}

#endif

// to[i][lane] = from[lane * step + i] for i < columns rounded down to a multiple of 4, and all
// kPanelLanes lanes. Returns how many columns that is. Unless `ahead` is 0, the lines `ahead`
// columns further on are prefetched into L2; they need not exist.
HWY_INLINE int64_t transpose_columns(const float* from, ptrdiff_t step, int64_t columns, char* to,
                                     ptrdiff_t to_bytes, ptrdiff_t ahead = 0) {
  int64_t c = 0;
  for (; c + kTransposeColumns <= columns; c += kTransposeColumns) {
    if (ahead != 0 && c % 16 == 0)
      for (ptrdiff_t lane = 0; lane < kPanelLanes; ++lane)
        __builtin_prefetch(from + lane * step + c + ahead, 0, 2);
    for (ptrdiff_t lane = 0; lane < kPanelLanes; lane += static_cast<ptrdiff_t>(kLanes))
      transpose_block(from + lane * step + c, step, to + c * to_bytes + lane * 4, to_bytes);
  }
  for (; c + 4 <= columns; c += 4)
    for (ptrdiff_t lane = 0; lane < kPanelLanes; lane += static_cast<ptrdiff_t>(kLanes))
      transpose_4(from + lane * step + c, step, to + c * to_bytes + lane * 4, to_bytes);
  return c;
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
#endif
