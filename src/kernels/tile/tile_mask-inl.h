// Bits in tile programs: comparisons to bits, logic on words, selection by bits, and spreading the
// bits of rows and diagonals to a word per row. Kernels layer.
#pragma once
#include "kernels/tile/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
using Tag = hn::ScalableTag<T>;

template <class A, class T>
HWY_INLINE hn::Vec<Tag<T>> operand(const char* row, size_t v) {
  const Tag<T> d;
  const T* p = reinterpret_cast<const T*>(row);
  if constexpr (std::is_same_v<A, PerLane>)
    return hn::LoadU(d, p + v * hn::MaxLanes(d));
  else
    return hn::Set(d, *p);
}

struct Lt {
  template <class W>
  static HWY_INLINE auto apply(W a, W b) {
    return hn::Lt(a, b);
  }
};
struct Le {  // for integers not (b < a): Highway has no Le for them
  template <class W>
  static HWY_INLINE auto apply(W a, W b) {
    if constexpr (hwy::IsFloat<hn::TFromV<W>>())
      return hn::Le(a, b);
    else
      return hn::Not(hn::Lt(b, a));
  }
};
struct Eq {
  template <class W>
  static HWY_INLINE auto apply(W a, W b) {
    return hn::Eq(a, b);
  }
};
struct Ne {  // true for NaN
  template <class W>
  static HWY_INLINE auto apply(W a, W b) {
    return hn::Not(hn::Eq(a, b));
  }
};

template <class Operation, class T, class A, class B>
void compare(const TileArgs& args) noexcept {
  const Tag<T> d;
  constexpr size_t kN = hn::MaxLanes(Tag<T>());
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      uint32_t bits = 0;
      QUIRE_UNROLL for (size_t v = 0; v < kPanelLanes / kN; ++v) bits |=
          bits_of(d, Operation::apply(operand<A, T>(at.a, v), operand<B, T>(at.b, v))) << (v * kN);
      const uint16_t word = static_cast<uint16_t>(bits);
      std::memcpy(at.out, &word, 2);
    }
  }
}

// c ? a : b for integers and f64.
template <class T, class A, class B>
void select(const TileArgs& args) noexcept {
  const Tag<T> d;
  constexpr size_t kN = hn::MaxLanes(Tag<T>());
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next())
      QUIRE_UNROLL for (size_t v = 0; v < kPanelLanes / kN; ++v) hn::StoreU(
          hn::IfThenElse(mask_at(d, at.c, v), operand<A, T>(at.a, v), operand<B, T>(at.b, v)), d,
          reinterpret_cast<T*>(at.out) + v * kN);
  }
}

// Words: one call does whole rows, whatever `panels` says.
HWY_INLINE uint64_t word_at(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}
HWY_INLINE void put_word(char* p, uint64_t word) { std::memcpy(p, &word, 8); }

struct WordAnd {
  static HWY_INLINE uint64_t apply(uint64_t a, uint64_t b) { return a & b; }
};
struct WordOr {
  static HWY_INLINE uint64_t apply(uint64_t a, uint64_t b) { return a | b; }
};
struct WordXor {
  static HWY_INLINE uint64_t apply(uint64_t a, uint64_t b) { return a ^ b; }
};

template <class Operation>
void word_binary(const TileArgs& args) noexcept {
  for (int64_t r = 0; r < args.rows; ++r)
    put_word(args.out + r * args.out_row,
             Operation::apply(word_at(args.a + r * args.a_row), word_at(args.b + r * args.b_row)));
}
inline void word_not(const TileArgs& args) noexcept {
  for (int64_t r = 0; r < args.rows; ++r)
    put_word(args.out + r * args.out_row, ~word_at(args.a + r * args.a_row));
}
inline void word_constant(const TileArgs& args) noexcept {
  for (int64_t r = 0; r < args.rows; ++r)
    put_word(args.out + r * args.out_row, args.instruction->imm ? ~uint64_t{0} : 0);
}

// Bit r of the bits of rows becomes the word of row r.
inline void expand_rows(const TileArgs& args) noexcept {
  for (int64_t r = 0; r < args.rows; ++r)
    put_word(args.out + r * args.out_row,
             uint64_t{0} - (word_at(args.a + r / 64 * 8) >> (r % 64) & 1));
}
// Row r of group g takes the 64 bits of the window that begin at rows - 1 - r + 64 g. Walked by
// words of the window: all rows that begin in one word need it and the next, shifted one further
// each.
inline void expand_diagonals(const TileArgs& args) noexcept {
  const int64_t groups = args.first, rows = args.rows;
  const ptrdiff_t step = args.out_row;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t from = 0; from < rows; from += 64) {
      const char* word = args.a + (from / 64 + g) * 8;
      const uint64_t low = word_at(word), high = word_at(word + 8) << 1;
      const int64_t count = rows - from < 64 ? rows - from : 64;
      char* out = args.out + (rows - 1 - from) * step + g * 8;
      for (int64_t shift = 0; shift < count; ++shift)
        put_word(out - shift * step, low >> shift | high << (63 - shift));
    }
  }
}

// Bits to 0 and 1.
inline void mask_to_int(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    char* out = args.out + panel * args.out_panel;
    for (int64_t r = 0; r < args.rows; ++r, out += args.out_row) {
      const uint64_t word = word_at(args.a + r * args.a_row) >> (panel * kPanelLanes);
      int32_t result[kPanelLanes];
      for (size_t j = 0; j < kPanelLanes; ++j) result[j] = static_cast<int32_t>(word >> j & 1);
      store_panel(out, result);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
