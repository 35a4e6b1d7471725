// Rotates rows, in place or while converting them; rope.h has the order of arithmetic. Kernels
// layer.
#pragma once
#include <type_traits>

#include "kernels/attention_order.h"
#include "kernels/float16-inl.h"
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
  return {fms(a.c, b.c, hn::Mul(a.s, b.s)), fma(a.s, b.c, hn::Mul(a.c, b.s))};
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

// Loads numbers of a row of E in compute type: a whole vector, or `count` of them, `step` apart.
template <bool kWhole, class T, class E>
HWY_INLINE VecOf<T> load_numbers(const E* from, int count, int step) {
  constexpr hn::ScalableTag<T> d;
  if constexpr (kWhole) return load_widened(d, from);
  T lanes[kLanesOf<T>] = {};
  for (int i = 0; i < count; ++i) lanes[i] = widened<T>(from[i * step]);
  return hn::LoadU(d, lanes);
}

// Rotates the pairs of a row from pair i on: a whole vector of them, or `count`. `from` may be the
// row itself.
template <bool kWhole, bool kInterleaved, class T, class E>
HWY_INLINE void rotate_pairs(int half, const E* from, T* row, int i, int count,
                             const Angle<T>& angle) {
  constexpr hn::ScalableTag<T> d;
  const int second = kInterleaved ? 1 : half, first = kInterleaved ? 2 * i : i;
  const E *x_from = from + first, *y_from = from + first + second;
  VecOf<T> x, y;
  if constexpr (kInterleaved && kWhole && std::is_same_v<T, E>) {
    hn::LoadInterleaved2(d, x_from, x, y);
  } else {
    constexpr bool kLoads = kWhole && !kInterleaved;
    x = load_numbers<kLoads, T>(x_from, count, kInterleaved ? 2 : 1);
    y = load_numbers<kLoads, T>(y_from, count, kInterleaved ? 2 : 1);
  }
  const VecOf<T> to_x = fms(x, angle.c, hn::Mul(y, angle.s));
  const VecOf<T> to_y = fma(y, angle.c, hn::Mul(x, angle.s));
  if constexpr (kInterleaved && kWhole) {
    hn::StoreInterleaved2(to_x, to_y, d, row + first);
  } else if constexpr (kInterleaved) {
    T xs[kLanesOf<T>], ys[kLanesOf<T>];
    hn::StoreU(to_x, d, xs);
    hn::StoreU(to_y, d, ys);
    for (int k = 0; k < count; ++k) {
      row[first + 2 * k] = xs[k];
      row[first + 2 * k + 1] = ys[k];
    }
  } else {
    store_part<kWhole>(to_x, row + i, count);
    store_part<kWhole>(to_y, row + half + i, count);
  }
}

// cos and sin of position 16 * block, which its 16 positions share: [2][half].
template <class T>
HWY_INLINE void block_angles(const RopeTables& tables, int64_t block, T* to) {
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  const int half = tables.half;
  const ptrdiff_t row = ptrdiff_t{2} * half;
  const T* high = static_cast<const T*>(tables.high) + block / kRopeMid * row;
  const T* mid = static_cast<const T*>(tables.mid) + block % kRopeMid * row;
  const auto vector = [&](auto whole, int i, int count) HWY_ATTR {
    const Angle<T> both = compose<T>(load_angle<whole.value>(high + i, high + half + i, count),
                                     load_angle<whole.value>(mid + i, mid + half + i, count));
    store_part<whole.value>(both.c, to + i, count);
    store_part<whole.value>(both.s, to + half + i, count);
  };
  int i = 0;
  for (; i + kN <= half; i += kN) vector(std::true_type(), i, kN);
  if (i < half) vector(std::false_type(), i, half - i);
}

// Rotates `count` rows. row_angle(whole, shared, k, i, lanes) gives the angles of row k from pair i
// on; `shared` is angle_of(whole, i, lanes), computed once for all rows.
template <bool kInterleaved, class T, class E, class AngleOf, class RowAngle>
HWY_INLINE void rotate_block(const RotateArgs<T>& args, const E* from, T* rows, int count,
                             const AngleOf& angle_of, const RowAngle& row_angle) {
  constexpr int kN = static_cast<int>(kLanesOf<T>);
  const int half = args.tables->half;
  const auto vector = [&](auto whole, int i, int lanes) HWY_ATTR {
    const auto shared = angle_of(whole, i, lanes);
    const E* from_row = from;
    T* row = rows;
    for (int k = 0; k < count; ++k, from_row += args.from_step, row += args.step) {
      Angle<T> angle = row_angle(whole, shared, k, i, lanes);
      if (args.back) angle.s = hn::Neg(angle.s);
      rotate_pairs<whole.value, kInterleaved>(half, from_row, row, i, lanes, angle);
    }
  };
  int i = 0;
  for (; i + kN <= half; i += kN) vector(std::true_type(), i, kN);
  if (i < half) vector(std::false_type(), i, half - i);
}

// Converts the numbers after the pairs, for rows that are not rotated in place.
template <class T, class E>
HWY_INLINE void copy_rest(const RotateArgs<T>& args, const E* from) {
  T* row = args.rows;
  for (int r = 0; r < args.count; ++r, row += args.step, from += args.from_step)
    for (int c = 2 * args.tables->half; c < args.columns; ++c) row[c] = widened<T>(from[c]);
}

template <bool kInterleaved, class T, class E>
HWY_INLINE void rotate_rows(const RotateArgs<T>& args, const E* from) {
  const RopeTables& tables = *args.tables;
  const int half = tables.half;
  if (tables.cos != nullptr) {
    const T* cos = static_cast<const T*>(tables.cos) + args.position * tables.cos_step;
    const T* sin = static_cast<const T*>(tables.sin) + args.position * tables.sin_step;
    const auto nothing = [](auto, int, int) HWY_ATTR { return 0; };
    rotate_block<kInterleaved>(args, from, args.rows, args.count, nothing,
                               [&](auto whole, int, int k, int i, int lanes) HWY_ATTR {
                                 return load_angle<whole.value>(cos + k * tables.cos_step + i,
                                                                sin + k * tables.sin_step + i,
                                                                lanes);
                               });
    return;
  }
  T base[kMostHeadDim];
  for (int r = 0; r < args.count;) {
    const int64_t position = args.position + r;
    const int first = static_cast<int>(position % kRopeLow);
    const int count = HWY_MIN(kRopeLow - first, args.count - r);
    block_angles(tables, position / kRopeLow, base);
    const T* low = static_cast<const T*>(tables.low) + first * ptrdiff_t{2} * half;
    rotate_block<kInterleaved>(
        args, from + r * args.from_step, args.rows + r * args.step, count,
        [&](auto whole, int i, int lanes)
            HWY_ATTR { return load_angle<whole.value>(base + i, base + half + i, lanes); },
        [&](auto whole, const Angle<T>& shared, int k, int i, int lanes) HWY_ATTR {
          const T* const row = low + k * ptrdiff_t{2} * half + i;
          return compose<T>(shared, load_angle<whole.value>(row, row + half, lanes));
        });
    r += count;
  }
}

template <class T, class E>
HWY_INLINE void rotate_from(const RotateArgs<T>& args, const E* from) {
  args.tables->interleaved ? rotate_rows<true>(args, from) : rotate_rows<false>(args, from);
}

template <class T>
void rotate(const RotateArgs<T>& args) noexcept {
  if (args.from == nullptr) {
    RotateArgs<T> in_place = args;
    in_place.from_step = args.step;
    return rotate_from(in_place, static_cast<const T*>(args.rows));
  }
  const auto of = [&]<class E>(const E* from) HWY_ATTR {
    copy_rest(args, from);
    rotate_from(args, from);
  };
  switch (args.dtype) {
    case DType::f32:
      return of(static_cast<const float*>(args.from));
    case DType::f64:
      return of(static_cast<const double*>(args.from));
    case DType::bf16:
      return of(static_cast<const Bf16Bits*>(args.from));
    case DType::f16:
      return of(static_cast<const F16Bits*>(args.from));
    default:
      return;
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
