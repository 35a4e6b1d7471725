// The eight tile registers of AMX, always used in full: 16 rows of 64 bytes each. Instructions are
// inline assembly: the compilers' intrinsics take register numbers as text, and g++'s do not
// declare that they read memory. Kernels layer.
//
// tdpbf16ps multiplies 16 rows of 16 pairs by 16 pairs of 16 columns. For each element, a chain of
// fused multiply-adds over the even numbers and one over the odd numbers, both from 0, are added,
// and their sum is added to the accumulator. Subnormals are 0 on input and output.
#pragma once
#include "kernels/prefill/forward_functions.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr int kTileRows = 16;   // of every tile; also the pairs of a step
constexpr int kTileBytes = 64;  // of a row
constexpr int kStepPairs = 16;

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {kTileBytes, kTileBytes, kTileBytes, kTileBytes,
                            kTileBytes, kTileBytes, kTileBytes, kTileBytes};
  uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows,
                      kTileRows, kTileRows, kTileRows, kTileRows};
};
static_assert(sizeof(TileConfig) == 64);

inline void begin_tiles() noexcept {
  static constexpr TileConfig kConfig;
  asm volatile("ldtilecfg %0" ::"m"(kConfig));
}
inline void end_tiles() noexcept { asm volatile("tilerelease"); }

template <int kTile>
HWY_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// Rows `step` bytes apart.
template <int kTile>
HWY_INLINE void load_tile(const void* from, ptrdiff_t step) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(step) : "memory");
}
template <int kTile>
HWY_INLINE void store_tile(void* to, ptrdiff_t step) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(step) : "memory");
}
// sum[row][column] += a[row][pair] * b[pair][column]
template <int kSum, int kA, int kB>
HWY_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}
// The same of signed bytes, four instead of a pair; sums are integers of 32 bits.
template <int kSum, int kA, int kB>
HWY_INLINE void multiply_codes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
