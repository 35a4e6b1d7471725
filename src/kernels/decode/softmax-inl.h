// The softmax of the decode kernel, or a formula's weights: one row of a tile, keys across the
// lanes. Kernels layer.
#pragma once
#include <cmath>

#include "kernels/coding/decode-inl.h"
#include "kernels/decode/functions.h"
#include "kernels/float16-inl.h"
#include "kernels/math/log-inl.h"
#include "kernels/prefill/softmax-inl.h"
#include "kernels/prefill/take_weights-inl.h"
#include "kernels/tile/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
constexpr T kMinusInf = static_cast<T>(-__builtin_inf());

// The bits of the 16 keys of a unit that are visible.
HWY_INLINE uint32_t visible_bits(const uint64_t* words, int keys, int unit) {
  const int left = keys - unit * kUnitKeys;
  const uint32_t existing = left >= kUnitKeys ? 0xffffu : (1u << HWY_MAX(left, 0)) - 1;
  if (words == nullptr) return existing;
  return static_cast<uint32_t>(words[unit / 4] >> (unit % 4 * kUnitKeys)) & existing;
}

// Hidden scores of a unit become -inf.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void hide(D d, uint32_t visible, T* scores) {
  if (visible == 0xffffu) return;
  const uint8_t bytes[8] = {static_cast<uint8_t>(visible), static_cast<uint8_t>(visible >> 8)};
  constexpr size_t kN = hn::MaxLanes(D());
  for (size_t v = 0; v < kUnitKeys / kN; ++v) {
    const auto mask = mask_at(d, reinterpret_cast<const char*>(bytes), v);
    const auto x = hn::IfThenElse(mask, hn::LoadU(d, scores + v * kN), hn::Set(d, kMinusInf<T>));
    hn::StoreU(x, d, scores + v * kN);
  }
}

// Partial sums by a tree: of 16 +8, +4, +2, +1.
template <class D>
HWY_INLINE hn::TFromD<D> tree_sum(D d, hn::Vec<D> sum) {
  constexpr size_t kN = hn::MaxLanes(D());
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kN > 4) {
    const hn::Half<D> half;
    return tree_sum(half, hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum)));
  }
#endif
  HWY_ALIGN hn::TFromD<D> lanes[kN];
  hn::Store(sum, d, lanes);
  for (size_t half = kN / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
template <class T, size_t kVectors>
HWY_INLINE T tree_sum(VecOf<T> (&sums)[kVectors]) {
  QUIRE_UNROLL for (size_t half = kVectors / 2; half > 0; half /= 2)
      QUIRE_UNROLL for (size_t i = 0; i < half; ++i) sums[i] = hn::Add(sums[i], sums[i + half]);
  return tree_sum(hn::ScalableTag<T>(), sums[0]);
}

// Weights of the units in place; returns their sum.
template <class T>
HWY_INLINE T weigh_units(const RowSoftmaxArgs<T>& args, VecOf<T> c, T m) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>, kVectors = kUnitKeys / kN;
  // While nothing is visible 0 is subtracted: -inf - -inf would be NaN.
  const VecOf<T> subtracted = hn::Set(d, m == kMinusInf<T> ? T{0} : m);
  VecOf<T> sum[kVectors];
  QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int unit = args.unit_begin; unit < args.unit_end; ++unit) {
    T* s = args.scores + unit * kUnitKeys;
    QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) sum[v] =
        hn::Add(sum[v], weigh<T>(c, subtracted, s + v * kN));
  }
  return tree_sum<T>(sum);
}

// The largest visible score of the units; hidden ones become -inf.
template <class T>
HWY_INLINE T largest(const RowSoftmaxArgs<T>& args) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>, kVectors = kUnitKeys / kN;
  VecOf<T> max[kVectors];
  QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) max[v] = hn::Set(d, kMinusInf<T>);
  for (int unit = args.unit_begin; unit < args.unit_end; ++unit) {
    T* s = args.scores + unit * kUnitKeys;
    hide(d, visible_bits(args.words, args.keys, unit), s);
    QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) max[v] =
        max_step(hn::LoadU(d, s + v * kN), max[v]);
  }
  QUIRE_UNROLL for (size_t v = 1; v < kVectors; ++v) max[0] = max_step(max[v], max[0]);
  return hn::GetLane(hn::MaxOfLanes(d, max[0]));  // there is no NaN among them
}

// Also writes the weights of the units in bf16, multiplied by scales if there are any; does nothing
// if these are not wanted.
HWY_INLINE void narrow_weights(const float* weights, int unit_begin, int unit_end, uint16_t* to,
                               const float* scales) {
  if (to == nullptr) return;
  for (int i = unit_begin * kUnitKeys; i < unit_end * kUnitKeys; i += static_cast<int>(kLanes)) {
    V weight = hn::LoadU(kF32, weights + i);
    if (scales != nullptr) weight = weight_of_codes(weight, hn::LoadU(kF32, scales + i));
    store_narrowed(kF32, weight, reinterpret_cast<Bf16Bits*>(to + i));
  }
}

template <class T>
T row_softmax(const RowSoftmaxArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> c = hn::Set(d, args.exponent_factor);
  const T max = largest<T>(args), old = *args.m, m = max > old ? max : old;
  const VecOf<T> factor = move_factor<T>(c, hn::Set(d, old), hn::Set(d, m));
  const VecOf<T> sum = hn::Set(d, weigh_units(args, c, m));
  *args.l = hn::GetLane(fma(hn::Set(d, *args.l), factor, sum));
  *args.m = m;
  if constexpr (sizeof(T) == 4)
    narrow_weights(args.scores, args.unit_begin, args.unit_end, args.pair_weights,
                   args.value_scales);
  return hn::GetLane(factor);
}

template <class T>
T take_row_weights(const RowSoftmaxArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>, kVectors = kUnitKeys / kN;
  VecOf<T> sum[kVectors];
  QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int unit = args.unit_begin; unit < args.unit_end; ++unit) {
    T* s = args.scores + unit * kUnitKeys;
    hide(d, visible_bits(args.words, args.keys, unit), s);
    QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) sum[v] =
        hn::Add(sum[v], take_weight(s + v * kN));
  }
  *args.l += tree_sum<T>(sum);
  *args.m = 0;
  if constexpr (sizeof(T) == 4)
    narrow_weights(args.scores, args.unit_begin, args.unit_end, args.pair_weights,
                   args.value_scales);
  return 1;
}

template <class T>
void rescale_numbers(T* x, int count, T factor) noexcept {
  constexpr hn::ScalableTag<T> d;
  for (int i = 0; i < count; i += static_cast<int>(kLanesOf<T>))
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
}

inline float log_f32(float x) noexcept { return hn::GetLane(log(hn::Set(kF32, x))); }
inline double log_f64(double x) noexcept { return std::log(x); }
template <class T>
T exp2_number(T x) noexcept {
  constexpr hn::ScalableTag<T> d;
  return hn::GetLane(exp2_softmax(hn::Set(d, x), hn::Set(d, T{1})));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
