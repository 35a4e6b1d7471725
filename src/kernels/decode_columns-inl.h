// Keys from rows in memory to columns across the lanes: a chunk of 32-bit numbers of each of kLanes
// keys becomes as many vectors. Values move, nothing is computed, and no byte behind a key's last
// number is read. Also the prefetch cursor that runs beside it. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/decode_functions.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Walks the lines of a unit for prefetching: through rows side by side one after the other, else
// through 16 rows line by line.
struct PrefetchCursor {
  const char* at = nullptr;
  ptrdiff_t inner = 0, wrap = 0;  // from line to line, and in addition after every 16
  int left = 0, turn = kUnitKeys;

  HWY_INLINE void start(const UnitAhead& unit, int first_key) {
    left = unit.lines * (kUnitKeys - first_key);
    const bool dense = unit.step == 64 * static_cast<ptrdiff_t>(unit.lines);
    inner = dense ? 64 : unit.step;
    wrap = dense ? 0 : 64 - kUnitKeys * unit.step;
    at = unit.at + (dense ? first_key * unit.step
                          : static_cast<ptrdiff_t>(unit.lines) * first_key / kUnitKeys * 64);
  }
  // The next `count` lines, a divisor of 16: the first of them; they lie `inner` apart. When there
  // are no more, `idle` again and again.
  HWY_INLINE const char* take(int count, const char* idle) {
    if (left <= 0) {
      inner = 0;
      return idle;
    }
    const char* first = at;
    at += count * inner;
    left -= count;
    turn -= count;
    if (turn == 0) {
      turn = kUnitKeys;
      at += wrap;
    }
    return first;
  }
};

#if HWY_TARGET <= HWY_AVX3

constexpr int kChunk = 8;  // numbers of 32 bits

// All of a chunk.
struct WholeChunk {
  HWY_INLINE __m256i load(const char* from) const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
};
// The first `bytes` of it (even), zeros behind.
struct PartOfChunk {
  __mmask16 halves;
  explicit HWY_INLINE PartOfChunk(int bytes)
      : halves(static_cast<__mmask16>((1u << (bytes / 2)) - 1)) {}
  HWY_INLINE __m256i load(const char* from) const { return _mm256_maskz_loadu_epi16(halves, from); }
};

// Rows i and i + 4 side by side: a load and an insert from memory, which leaves three shuffles for
// each vector of the result.
template <class Part>
HWY_INLINE __m512i two_rows(const Part& part, const char* from, ptrdiff_t step) {
  const __m256i low = part.load(from), high = part.load(from + 4 * step);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// x[i][lane] = number i of the key `lane`.
template <class Part>
HWY_INLINE void load_columns(const Part& part, const char* from, ptrdiff_t step, VU (&x)[kChunk]) {
  __m512i r[8], t[8];
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
    r[i] = two_rows(part, from + i * step, step);
    r[4 + i] = two_rows(part, from + (8 + i) * step, step);
  }
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  QUIRE_UNROLL for (int h = 0; h < 2; ++h) {
    r[4 * h] = _mm512_unpacklo_epi64(t[4 * h], t[4 * h + 2]);
    r[4 * h + 1] = _mm512_unpackhi_epi64(t[4 * h], t[4 * h + 2]);
    r[4 * h + 2] = _mm512_unpacklo_epi64(t[4 * h + 1], t[4 * h + 3]);
    r[4 * h + 3] = _mm512_unpackhi_epi64(t[4 * h + 1], t[4 * h + 3]);
  }
  QUIRE_UNROLL for (int c = 0; c < 4; ++c) {
    x[c] = VU{_mm512_shuffle_i32x4(r[c], r[4 + c], 0x88)};
    x[4 + c] = VU{_mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd)};
  }
}

#elif HWY_TARGET != HWY_SCALAR

constexpr int kChunk = 4;

struct WholeChunk {
  HWY_INLINE const char* rows(const char* from, ptrdiff_t) const { return from; }
  HWY_INLINE ptrdiff_t step(ptrdiff_t step) const { return step; }
};
// Copied to where whole chunks can be read.
struct PartOfChunk {
  int bytes;
  HWY_ALIGN char copy[kLanes * 4 * kChunk] = {};
  explicit HWY_INLINE PartOfChunk(int part) : bytes(part) {}
  HWY_INLINE const char* rows(const char* from, ptrdiff_t step) {
    for (size_t i = 0; i < kLanes; ++i)
      std::memcpy(copy + i * 4 * kChunk, from + static_cast<ptrdiff_t>(i) * step,
                  static_cast<size_t>(bytes));
    return copy;
  }
  HWY_INLINE ptrdiff_t step(ptrdiff_t) const { return 4 * kChunk; }
};

// 128 bits of each of lanes / 4 rows, 4 rows apart.
template <class D>
HWY_INLINE hn::Vec<D> load_row_blocks(D d, const char* from, ptrdiff_t step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    const hn::Repartition<uint8_t, D> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from)));
  } else {
    const hn::Half<D> half;
    constexpr auto kHalf = static_cast<ptrdiff_t>(hn::MaxLanes(hn::Half<D>()));
    return hn::Combine(d, load_row_blocks(half, from + kHalf * step, step),
                       load_row_blocks(half, from, step));
  }
}

// x[i][lane] = number i of the key `lane`.
template <class Part>
HWY_INLINE void load_columns(Part& part, const char* at, ptrdiff_t at_step, VU (&x)[kChunk]) {
  const char* from = part.rows(at, at_step);
  const ptrdiff_t step = part.step(at_step);
  const hn::RepartitionToWide<U32> wide;
  const VU a = load_row_blocks(kU32, from, step), b = load_row_blocks(kU32, from + step, step);
  const VU c = load_row_blocks(kU32, from + 2 * step, step),
           d = load_row_blocks(kU32, from + 3 * step, step);
  const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(kU32, a, b));
  const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(kU32, a, b));
  const auto cd_low = hn::BitCast(wide, hn::InterleaveLower(kU32, c, d));
  const auto cd_high = hn::BitCast(wide, hn::InterleaveUpper(kU32, c, d));
  x[0] = hn::BitCast(kU32, hn::InterleaveLower(wide, ab_low, cd_low));
  x[1] = hn::BitCast(kU32, hn::InterleaveUpper(wide, ab_low, cd_low));
  x[2] = hn::BitCast(kU32, hn::InterleaveLower(wide, ab_high, cd_high));
  x[3] = hn::BitCast(kU32, hn::InterleaveUpper(wide, ab_high, cd_high));
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
