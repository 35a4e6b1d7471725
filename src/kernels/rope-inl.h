// Rotation of rows in place; the order of arithmetic is in rope.h. Kernels layer.
#pragma once
#include <type_traits>

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

// A whole vector, or `count` of its lanes, the others 0.
template <bool kWhole, class T>
HWY_INLINE VecOf<T> load_part(const T* from, int count) {
  constexpr hn::ScalableTag<T> d;
  if constexpr (kWhole) return hn::LoadU(d, from);
  T lanes[kLanesOf<T>] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::LoadU(d, lanes);
}
template <bool kWhole, class T>
HWY_INLINE void store_part(VecOf<T> x, T* to, int count) {
  constexpr hn::ScalableTag<T> d;
  if constexpr (kWhole) return hn::StoreU(x, d, to);
  T lanes[kLanesOf<T>];
  hn::StoreU(x, d, lanes);
  for (int i = 0; i < count; ++i) to[i] = lanes[i];
}
template <bool kWhole, class T>
HWY_INLINE Angle<T> load_angle(const T* cos, const T* sin, int count) {
  return {load_part<kWhole>(cos, count), load_part<kWhole>(sin, count)};
}

// Pairs i .. of a row; `count` of them, if not a whole vector.
template <bool kWhole, bool kInterleaved, class T>
HWY_INLINE void rotate_pairs(const RopeTables& tables, T* row, int i, int count, Angle<T> angle) {
  constexpr hn::ScalableTag<T> d;
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  T *x_at = row + i, *y_at = row + tables.half + i, *const pairs = row + ptrdiff_t{2} * i;
  T xs[kLanesOf<T>] = {}, ys[kLanesOf<T>] = {};
  VecOf<T> x, y;
  if constexpr (kInterleaved && kWhole) {
    hn::LoadInterleaved2(d, pairs, x, y);
  } else if constexpr (kInterleaved) {
    for (int k = 0; k < kN && k < count; ++k) {
      xs[k] = pairs[2 * k];
      ys[k] = pairs[2 * k + 1];
    }
    x = hn::LoadU(d, xs);
    y = hn::LoadU(d, ys);
  } else {
    x = load_part<kWhole>(x_at, count);
    y = load_part<kWhole>(y_at, count);
  }
  const VecOf<T> to_x = fma(x, angle.c, hn::Neg(hn::Mul(y, angle.s)));
  const VecOf<T> to_y = fma(y, angle.c, hn::Mul(x, angle.s));
  if constexpr (kInterleaved && kWhole) {
    hn::StoreInterleaved2(to_x, to_y, d, pairs);
  } else if constexpr (kInterleaved) {
    hn::StoreU(to_x, d, xs);
    hn::StoreU(to_y, d, ys);
    for (int k = 0; k < kN && k < count; ++k) {
      pairs[2 * k] = xs[k];
      pairs[2 * k + 1] = ys[k];
    }
  } else {
    store_part<kWhole>(to_x, x_at, count);
    store_part<kWhole>(to_y, y_at, count);
  }
}

// cos and sin of the 16 positions from 16 * block on, without what is below 16: [2][half].
template <class T>
HWY_INLINE void block_angles(const RopeTables& tables, int64_t block, T* to) {
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  const int half = tables.half;
  const ptrdiff_t row = ptrdiff_t{2} * half;
  const T* high = static_cast<const T*>(tables.high) + block / kRopeMid * row;
  const T* mid = static_cast<const T*>(tables.mid) + block % kRopeMid * row;
  for (int i = 0; i < half; i += kN) {
    const int count = half - i < kN ? half - i : kN;
    const Angle<T> both = compose<T>(load_angle<false>(high + i, high + half + i, count),
                                     load_angle<false>(mid + i, mid + half + i, count));
    store_part<false>(both.c, to + i, count);
    store_part<false>(both.s, to + half + i, count);
  }
}

// One row; angle_of(bool_constant whole, i, count) gives the angles of its pairs.
template <bool kInterleaved, class T, class AngleOf>
HWY_INLINE void rotate_row(const RopeTables& tables, T* row, bool back, const AngleOf& angle_of) {
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  int i = 0;
  for (; i + kN <= tables.half; i += kN) {
    Angle<T> angle = angle_of(std::true_type(), i, kN);
    if (back) angle.s = hn::Neg(angle.s);
    rotate_pairs<true, kInterleaved>(tables, row, i, kN, angle);
  }
  if (i == tables.half) return;
  const int count = tables.half - i;
  Angle<T> angle = angle_of(std::false_type(), i, count);
  if (back) angle.s = hn::Neg(angle.s);
  rotate_pairs<false, kInterleaved>(tables, row, i, count, angle);
}

template <bool kInterleaved, class T>
HWY_INLINE void rotate_rows(const RotateArgs<T>& args) {
  const RopeTables& tables = *args.tables;
  const int half = tables.half;
  T base[kMostHeadDim];
  int64_t known = -1;
  T* row = args.rows;
  for (int r = 0; r < args.count; ++r, row += args.step) {
    const int64_t position = args.position + r;
    if (tables.cos != nullptr) {
      const T* cos = static_cast<const T*>(tables.cos) + position * tables.cos_step;
      const T* sin = static_cast<const T*>(tables.sin) + position * tables.sin_step;
      rotate_row<kInterleaved>(tables, row, args.back, [&](auto whole, int i, int count) HWY_ATTR {
        return load_angle<whole.value>(cos + i, sin + i, count);
      });
      continue;
    }
    const int64_t block = position / kRopeLow;
    if (block != known) block_angles(tables, known = block, base);
    const T* low = static_cast<const T*>(tables.low) + position % kRopeLow * ptrdiff_t{2} * half;
    rotate_row<kInterleaved>(tables, row, args.back, [&](auto whole, int i, int count) HWY_ATTR {
      return compose<T>(load_angle<whole.value>(base + i, base + half + i, count),
                        load_angle<whole.value>(low + i, low + half + i, count));
    });
  }
}

template <class T>
void rotate(const RotateArgs<T>& args) noexcept {
  args.tables->interleaved ? rotate_rows<true>(args) : rotate_rows<false>(args);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
