// How tile functions walk their rows: panels of 16 lanes outside, rows inside, so that one pointer
// per operand suffices whatever the layout of the score tile. f32 operations work on vectors;
// everything else is a plain loop over the 16 lanes of a panel, which the compiler vectorises.
// Kernels layer.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels/math/minmax-inl.h"
#include "kernels/simd-inl.h"
#include "kernels/tile/tile_functions.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr size_t kPanelVectors = kPanelLanes / kLanes;

// One number per lane of a row.
struct PerLane {
  static HWY_INLINE V vector(const char* row, size_t v) {
    return hn::LoadU(kF32, reinterpret_cast<const float*>(row) + v * kLanes);
  }
  template <class T>
  static HWY_INLINE T lane(const char* row, size_t j) {
    return reinterpret_cast<const T*>(row)[j];
  }
};
// One number for all lanes of a row.
struct PerRow {
  static HWY_INLINE V vector(const char* row, size_t) {
    return hn::Set(kF32, *reinterpret_cast<const float*>(row));
  }
  template <class T>
  static HWY_INLINE T lane(const char* row, size_t) {
    return *reinterpret_cast<const T*>(row);
  }
};

// The operands of one panel, advanced row by row. Steps and count are copies, field by field:
// through the arguments they would be loaded again after every store, and a vector copy of
// just-stored scalars stalls.
struct PanelCursor {
  const char* a;
  const char* b;
  const char* c;
  char* out;
  const char* visible;
  const ptrdiff_t a_row, b_row, c_row, out_row, visible_row;
  const int64_t rows;
  HWY_INLINE PanelCursor(const TileArgs& args, int panel)
      : a(args.a + panel * args.a_panel),
        b(args.b + panel * args.b_panel),
        c(args.c + panel * (kPanelLanes / 8)),
        out(args.out + panel * args.out_panel),
        visible(args.visible + panel * (kPanelLanes / 8)),
        a_row(args.a_row),
        b_row(args.b_row),
        c_row(args.c_row),
        out_row(args.out_row),
        visible_row(args.visible_row),
        rows(args.rows) {}
  HWY_INLINE void next() {
    a += a_row;
    b += b_row;
    c += c_row;
    out += out_row;
    visible += visible_row;
  }
};

// The bits of a mask, lane 0 lowest, and back.
template <class D>
HWY_INLINE uint32_t bits_of(D d, hn::Mask<D> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint16_t bits;  // copied whole: g++ would put two bytes together by shifts
  std::memcpy(&bits, bytes, 2);
  return bits;
}
// Mask of vector v of a panel whose 16 bits are at `bits`.
template <class D>
HWY_INLINE hn::Mask<D> mask_at(D d, const char* bits, size_t v) {
  constexpr size_t kN = hn::MaxLanes(D());
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(bits) + v * kN / 8;
  if constexpr (kN >= 8) {
    return hn::LoadMaskBits(d, bytes);
  } else {
    const uint8_t shifted[8] = {static_cast<uint8_t>(*bytes >> (v * kN % 8))};
    return hn::LoadMaskBits(d, shifted);
  }
}

// What becomes of a vector of results, and of the running maximum while rows go by.
template <TileFinish kFinish>
struct Finish {
  V max[kPanelVectors];

  HWY_INLINE Finish(const TileArgs& args, int panel) {
    if constexpr (kFinish != TileFinish::kStore) {
      const float* from = static_cast<const float*>(args.max) + panel * kPanelLanes;
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) max[v] =
          hn::LoadU(kF32, from + v * kLanes);
    }
  }
  HWY_INLINE void store(const PanelCursor& at, size_t v, V x) {
    if constexpr (kFinish == TileFinish::kMaskedScore)
      x = hn::IfThenElse(mask_at(kF32, at.visible, v), x, hn::Set(kF32, -__builtin_inff()));
    if constexpr (kFinish != TileFinish::kStore) max[v] = max_step(x, max[v]);
    hn::StoreU(x, kF32, reinterpret_cast<float*>(at.out) + v * kLanes);
  }
  HWY_INLINE void done(const TileArgs& args, int panel) const {
    if constexpr (kFinish != TileFinish::kStore) {
      float* to = static_cast<float*>(args.max) + panel * kPanelLanes;
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v)
          hn::StoreU(max[v], kF32, to + v * kLanes);
    }
  }
};

// f32 -> f32. Operation: static V apply(V).
template <class Operation, TileFinish kFinish>
void float_unary(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    Finish<kFinish> finish(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next())
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v)
          finish.store(at, v, Operation::apply(PerLane::vector(at.a, v)));
    finish.done(args, panel);
  }
}

// f32, f32 -> f32. Operation: static V apply(V, V).
template <class Operation, class A, class B, TileFinish kFinish>
void float_binary(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    Finish<kFinish> finish(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next())
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v)
          finish.store(at, v, Operation::apply(A::vector(at.a, v), B::vector(at.b, v)));
    finish.done(args, panel);
  }
}

// c ? a : b in f32.
template <class A, class B, TileFinish kFinish>
void float_select(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    Finish<kFinish> finish(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next())
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) finish.store(
          at, v, hn::IfThenElse(mask_at(kF32, at.c, v), A::vector(at.a, v), B::vector(at.b, v)));
    finish.done(args, panel);
  }
}

// A result that does not vary by lane still has to fill the score tile.
template <TileFinish kFinish>
void float_fill(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    Finish<kFinish> finish(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next())
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v)
          finish.store(at, v, PerRow::vector(at.a, v));
    finish.done(args, panel);
  }
}

template <class T>
HWY_INLINE void store_panel(char* out, const T (&values)[kPanelLanes]) {
  std::memcpy(out, values, sizeof(values));
}

// Lane by lane: Operation's static Out apply(In) or apply(In, In).
template <class Operation, class In, class Out>
void lanes_unary(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      Out result[kPanelLanes];
      for (size_t j = 0; j < kPanelLanes; ++j)
        result[j] = Operation::apply(PerLane::lane<In>(at.a, j));
      store_panel(at.out, result);
    }
  }
}
template <class Operation, class In, class Out, class A, class B>
void lanes_binary(const TileArgs& args) noexcept {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      Out result[kPanelLanes];
      for (size_t j = 0; j < kPanelLanes; ++j)
        result[j] = Operation::apply(A::template lane<In>(at.a, j), B::template lane<In>(at.b, j));
      store_panel(at.out, result);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
