// Rotation of rows in place; the order of arithmetic is in rope.h. Kernels layer.
#pragma once
#include "kernels/attention_order.h"
#include "kernels/product-inl.h"
#include "kernels/rope.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
struct Angle {
  VecOf<T> c, s;
};

template <class T>
HWY_INLINE Angle<T> compose(const Angle<T>& a, const Angle<T>& b) {
  return {fma(a.c, b.c, hn::Neg(hn::Mul(a.s, b.s))), fma(a.s, b.c, hn::Mul(a.c, b.s))};
}

// `count` of a vector's lanes; the others are 0.
template <class T>
HWY_INLINE VecOf<T> load_some(const T* from, int count) {
  constexpr hn::ScalableTag<T> d;
  if (count >= static_cast<int>(kLanesOf<T>)) return hn::LoadU(d, from);
  T lanes[kLanesOf<T>] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::LoadU(d, lanes);
}
template <class T>
HWY_INLINE void store_some(VecOf<T> x, T* to, int count) {
  constexpr hn::ScalableTag<T> d;
  if (count >= static_cast<int>(kLanesOf<T>)) return hn::StoreU(x, d, to);
  T lanes[kLanesOf<T>];
  hn::StoreU(x, d, lanes);
  for (int i = 0; i < count; ++i) to[i] = lanes[i];
}

// cos and sin of the 16 positions from 16 * block on, without what is below 16: [2][half].
template <class T>
HWY_INLINE void block_angles(const RopeTables& tables, int64_t block, T* to) {
  const ptrdiff_t row = ptrdiff_t{2} * tables.half;
  const T* high = static_cast<const T*>(tables.high) + block / kRopeMid * row;
  const T* mid = static_cast<const T*>(tables.mid) + block % kRopeMid * row;
  for (int i = 0; i < tables.half; i += static_cast<int>(kLanesOf<T>)) {
    const int count = tables.half - i;
    const Angle<T> a{load_some(high + i, count), load_some(high + tables.half + i, count)};
    const Angle<T> b{load_some(mid + i, count), load_some(mid + tables.half + i, count)};
    const Angle<T> both = compose<T>(a, b);
    store_some<T>(both.c, to + i, count);
    store_some<T>(both.s, to + tables.half + i, count);
  }
}

// Numbers i .. of a row: pairs of x and y, `count` of them at most.
template <class T>
HWY_INLINE void rotate_pairs(const RopeTables& tables, T* row, int i, int count, Angle<T> angle,
                             bool back) {
  constexpr hn::ScalableTag<T> d;
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  if (back) angle.s = hn::Neg(angle.s);
  VecOf<T> x, y;
  T xs[kLanesOf<T>] = {}, ys[kLanesOf<T>] = {};
  const bool whole = count >= kN;
  T* const pairs = row + ptrdiff_t{2} * i;
  if (!tables.interleaved) {
    x = load_some(row + i, count);
    y = load_some(row + tables.half + i, count);
  } else {
    for (int k = 0; k < kN && k < count; ++k) {
      xs[k] = pairs[2 * k];
      ys[k] = pairs[2 * k + 1];
    }
    x = hn::LoadU(d, xs);
    y = hn::LoadU(d, ys);
  }
  const VecOf<T> to_x = fma(x, angle.c, hn::Neg(hn::Mul(y, angle.s)));
  const VecOf<T> to_y = fma(y, angle.c, hn::Mul(x, angle.s));
  if (!tables.interleaved) {
    store_some<T>(to_x, row + i, whole ? kN : count);
    store_some<T>(to_y, row + tables.half + i, whole ? kN : count);
    return;
  }
  hn::StoreU(to_x, d, xs);
  hn::StoreU(to_y, d, ys);
  for (int k = 0; k < kN && k < count; ++k) {
    pairs[2 * k] = xs[k];
    pairs[2 * k + 1] = ys[k];
  }
}

template <class T>
HWY_INLINE void rotate_given(const RotateArgs<T>& args) {
  const RopeTables& tables = *args.tables;
  const T* cos = static_cast<const T*>(tables.cos) + args.position * tables.cos_step;
  const T* sin = static_cast<const T*>(tables.sin) + args.position * tables.sin_step;
  T* row = args.rows;
  for (int r = 0; r < args.count; ++r) {
    for (int i = 0; i < tables.half; i += static_cast<int>(kLanesOf<T>)) {
      const int count = tables.half - i;
      const Angle<T> angle{load_some(cos + i, count), load_some(sin + i, count)};
      rotate_pairs<T>(tables, row, i, count, angle, args.back);
    }
    row += args.step;
    cos += tables.cos_step;
    sin += tables.sin_step;
  }
}

template <class T>
void rotate(const RotateArgs<T>& args) noexcept {
  const RopeTables& tables = *args.tables;
  if (tables.cos != nullptr) return rotate_given(args);
  T base[kMostHeadDim];
  int64_t known = -1;
  T* row = args.rows;
  for (int r = 0; r < args.count; ++r, row += args.step) {
    const int64_t position = args.position + r, block = position / kRopeLow;
    if (block != known) block_angles(tables, known = block, base);
    const T* low =
        static_cast<const T*>(tables.low) + position % kRopeLow * ptrdiff_t{2} * tables.half;
    for (int i = 0; i < tables.half; i += static_cast<int>(kLanesOf<T>)) {
      const int count = tables.half - i;
      const Angle<T> a{load_some(base + i, count), load_some(base + tables.half + i, count)};
      const Angle<T> b{load_some(low + i, count), load_some(low + tables.half + i, count)};
      rotate_pairs<T>(tables, row, i, count, compose<T>(a, b), args.back);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
