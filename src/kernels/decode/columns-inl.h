// Transposes keys from rows in memory to columns across the lanes: a chunk of 32-bit numbers of
// each of kLanes keys becomes as many vectors. Values move, nothing is computed, and no byte after
// a key's last number is read. Also holds the cursors that prefetch meanwhile. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/decode/functions.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Walks the cache lines of a unit for prefetching: straight through if its rows are contiguous,
// else across 16 rows, line by line.
struct StepCursor {
  const char* at = nullptr;
  ptrdiff_t inner = 0, wrap = 0;  // from line to line, and in addition after every 16
  int left = 0, turn = kUnitKeys;

  HWY_INLINE void start(const UnitAhead& unit, int first_key) {
    if (unit.at == nullptr) return;
    left = unit.lines * (kUnitKeys - first_key);
    const bool dense = unit.step == 64 * static_cast<ptrdiff_t>(unit.lines);
    inner = dense ? 64 : unit.step;
    wrap = dense ? 0 : 64 - kUnitKeys * unit.step;
    at = unit.at + (dense ? first_key * unit.step
                          : static_cast<ptrdiff_t>(unit.lines) * first_key / kUnitKeys * 64);
  }
  // Returns the first of the next `count` lines, which lie `inner` apart; `count` divides 16. Once
  // there are no more, returns `idle`.
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

// Prefetches the lines of a unit whose rows have an address each, a few lines at a time.
template <int kLocality>
struct ListCursor {
  const char* const* rows = nullptr;
  int lines = 0, line = 0, left = 0;  // lines of a row, the next of them, lines left in all

  HWY_INLINE void start(const UnitAhead& unit, int first_key) {
    if (unit.rows == nullptr) return;
    rows = unit.rows + first_key;
    lines = unit.lines;
    left = lines * (kUnitKeys - first_key);
  }
  template <int kCount>
  HWY_INLINE void take() {
    if (left <= 0) return;
    const char* const at = *rows + 64 * line;
    if (HWY_LIKELY(line + kCount <= lines)) {
      QUIRE_UNROLL for (int i = 0; i < kCount; ++i) __builtin_prefetch(at + 64 * i, 0, kLocality);
      left -= kCount;
      line += kCount;
    } else if (2 * (lines - line) == kCount &&
               left >= kCount) {  // the rest of a row and the next row
      const char* const next = rows[1];
      QUIRE_UNROLL for (int i = 0; i < kCount / 2; ++i) {
        __builtin_prefetch(at + 64 * i, 0, kLocality);
        __builtin_prefetch(next + 64 * i, 0, kLocality);
      }
      left -= kCount;
      line = kCount / 2;
      ++rows;
    } else {
      for (int i = 0; i < kCount && left > 0; ++i, --left) {
        if (line == lines) {
          line = 0;
          ++rows;
        }
        __builtin_prefetch(*rows + 64 * line++, 0, kLocality);
      }
    }
    if (line == lines) {
      line = 0;
      ++rows;
    }
  }
};

// Prefetches a whole unit of the kind (with or without a list of rows) that the cursor in use does
// not handle; there are few of those.
template <int kLocality>
void prefetch_other(const UnitAhead& unit, bool is_list) {
  if (is_list == (unit.rows != nullptr)) return;
  for (int i = 0; i < kUnitKeys; ++i) {
    for (int line = 0; line < unit.lines; ++line) {
      const char* row = unit.rows != nullptr ? unit.rows[i] : unit.at + i * unit.step;
      __builtin_prefetch(row + 64 * line, 0, kLocality);
    }
  }
}

// Rows of keys, `step` bytes apart or with an address each, from some byte of each row on.
struct StepRows {
  static constexpr bool kIsList = false;
  using NearCursor = StepCursor;
  using FarCursor = StepCursor;
  const char* at = nullptr;
  ptrdiff_t step = 0;
  StepRows() = default;
  HWY_INLINE StepRows(const DecodeUnit& unit, ptrdiff_t row_step) : at(unit.at), step(row_step) {}
  HWY_INLINE StepRows(const char* first, ptrdiff_t row_step) : at(first), step(row_step) {}
  HWY_INLINE const char* row(int i) const { return at + i * step; }
  HWY_INLINE StepRows from(int i) const { return {row(i), step}; }
  HWY_INLINE void advance(int bytes) { at += bytes; }
};
template <class Near, class Far>
struct RowList {
  static constexpr bool kIsList = true;
  using NearCursor = Near;
  using FarCursor = Far;
  const char* const* rows = nullptr;
  ptrdiff_t offset = 0;
  RowList() = default;
  HWY_INLINE RowList(const DecodeUnit& unit, ptrdiff_t) : rows(unit.rows) {}
  HWY_INLINE RowList(const char* const* first, ptrdiff_t bytes) : rows(first), offset(bytes) {}
  HWY_INLINE const char* row(int i) const { return rows[i] + offset; }
  HWY_INLINE RowList from(int i) const { return {rows + i, offset}; }
  HWY_INLINE void advance(int bytes) { offset += bytes; }
};
using ListRows = RowList<ListCursor<3>, ListCursor<2>>;
// Nothing is prefetched meanwhile: rows have been asked for long before.
struct NoCursor {
  HWY_INLINE void start(const UnitAhead&, int) {}
  template <int kCount>
  HWY_INLINE void take() {}
};
using QuietRows = RowList<NoCursor, NoCursor>;

#if HWY_TARGET <= HWY_AVX3

constexpr int kChunk = 8;  // numbers of 32 bits

// Reads a whole chunk.
struct WholeChunk {
  HWY_INLINE __m256i load(const char* from) const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
};
// Reads the first `bytes` bytes of a chunk (an even number), then zeros.
struct PartOfChunk {
  __mmask16 halves;
  explicit HWY_INLINE PartOfChunk(int bytes)
      : halves(static_cast<__mmask16>((1u << (bytes / 2)) - 1)) {}
  HWY_INLINE __m256i load(const char* from) const { return _mm256_maskz_loadu_epi16(halves, from); }
};

// Rows i and i + 4 side by side: a load and an insert from memory, which leaves three shuffles for
// each vector of the result.
template <class Part, class Rows>
HWY_INLINE __m512i two_rows(const Part& part, const Rows& rows, int i) {
  const __m256i low = part.load(rows.row(i)), high = part.load(rows.row(i + 4));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// x[i][lane] = number i of the key `lane`.
template <class Part, class Rows>
HWY_INLINE void load_columns(const Part& part, const Rows& rows, VU (&x)[kChunk]) {
  __m512i r[8], t[8];
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
    r[i] = two_rows(part, rows, i);
    r[4 + i] = two_rows(part, rows, 8 + i);
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
  template <class Rows>
  HWY_INLINE const Rows& whole(const Rows& rows) const {
    return rows;
  }
};
// Copies the bytes that exist to where whole chunks can be read.
struct PartOfChunk {
  int bytes;
  HWY_ALIGN char copy[kLanes * 4 * kChunk] = {};
  explicit HWY_INLINE PartOfChunk(int part) : bytes(part) {}
  template <class Rows>
  HWY_INLINE StepRows whole(const Rows& rows) {
    for (size_t i = 0; i < kLanes; ++i)
      std::memcpy(copy + i * 4 * kChunk, rows.row(static_cast<int>(i)), bytes);
    return {copy, 4 * kChunk};
  }
};

// 128 bits of each of lanes / 4 rows, 4 rows apart.
template <class D, class Rows>
HWY_INLINE hn::Vec<D> load_row_blocks(D d, const Rows& rows, int i) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    const hn::Repartition<uint8_t, D> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(rows.row(i))));
  } else {
    const hn::Half<D> half;
    constexpr auto kHalf = static_cast<int>(hn::MaxLanes(hn::Half<D>()));
    return hn::Combine(d, load_row_blocks(half, rows, i + kHalf), load_row_blocks(half, rows, i));
  }
}

// x[i][lane] = number i of the key `lane`.
template <class Part, class Rows>
HWY_INLINE void load_columns(Part& part, const Rows& some, VU (&x)[kChunk]) {
  const auto& rows = part.whole(some);
  const hn::RepartitionToWide<U32> wide;
  const VU a = load_row_blocks(kU32, rows, 0), b = load_row_blocks(kU32, rows, 1);
  const VU c = load_row_blocks(kU32, rows, 2), d = load_row_blocks(kU32, rows, 3);
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
