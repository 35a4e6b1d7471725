// The online softmax of one panel of queries: scores to weights, running maximum and sum, and
// the factor for what was summed before. Every decision is per row (per lane), never per
// vector. The rules are those of attention_order.h. Kernels layer.
#pragma once
#include "kernels/math/exp2_softmax_f64-inl.h"
#include "kernels/math/minmax-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// What a sum is multiplied by when its maximum moves from `from` to `to`: exactly 1 where it does
// not move, from -inf to -inf too.
template <class T>
HWY_INLINE VecOf<T> move_factor(VecOf<T> c, VecOf<T> from, VecOf<T> to) {
  const VecOf<T> moved = exp2_softmax(hn::Sub(from, to), c);
  return hn::IfThenElse(hn::Eq(from, to), hn::Set(hn::ScalableTag<T>(), T{1}), moved);
}

// Sums in flight: as many of the 16 as leave registers for the exponential.
constexpr size_t kSums = HWY_TARGET == HWY_SCALAR ? 1 : kLanes >= 16 ? 8 : 4;

// Where weights go: to their scores' place.
template <class T>
struct WeightsInPlace {
  // Of key `key` and the next one, whose score is at `at`.
  HWY_INLINE void two(VecOf<T> even, VecOf<T> odd, T* at, int /*key*/) const {
    constexpr hn::ScalableTag<T> d;
    hn::StoreU(even, d, at);
    hn::StoreU(odd, d, at + kPanel);
  }
  HWY_INLINE void one(VecOf<T> p, T* at, int /*key*/) const {
    hn::StoreU(p, hn::ScalableTag<T>(), at);
  }
};

// A score as its weight.
template <class T>
HWY_INLINE VecOf<T> weight_at(VecOf<T> c, VecOf<T> m, const T* at) {
  return exp2_softmax(hn::Sub(hn::LoadU(hn::ScalableTag<T>(), at), m), c);
}

// The same, stored in its place, too.
template <class T>
HWY_INLINE VecOf<T> weigh(VecOf<T> c, VecOf<T> m, T* at) {
  const VecOf<T> p = weight_at<T>(c, m, at);
  hn::StoreU(p, hn::ScalableTag<T>(), at);
  return p;
}

// Two keys, or one where one sum is in flight.
template <class T, class Weights>
HWY_INLINE void weigh_some(VecOf<T> c, VecOf<T> m, T* at, int key, VecOf<T>* sums,
                           const Weights& weights) {
  const VecOf<T> even = weight_at<T>(c, m, at);
  sums[0] = hn::Add(sums[0], even);
  if constexpr (kSums == 1) return weights.one(even, at, key);
  const VecOf<T> odd = weight_at<T>(c, m, at + kPanel);
  sums[1] = hn::Add(sums[1], odd);
  weights.two(even, odd, at, key);
}

// Keys `first` .. first + kSums - 1 of each group: their weights, and the sums of these to `sums`.
template <class T, class Weights>
HWY_INLINE void weigh_groups(const SoftmaxArgs<T>& args, T* scores, VecOf<T> c, VecOf<T> m,
                             int first, VecOf<T>* sums, const Weights& weights) {
  constexpr size_t kSome = kSums == 1 ? 1 : 2;
  constexpr hn::ScalableTag<T> d;
  VecOf<T> acc[kSums];
  QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) acc[i] = hn::Zero(d);
  const int rows = args.rows;
  for (uint32_t left = args.groups; left != 0; left &= left - 1) {
    const int key = __builtin_ctz(left) * kPanel + first;
    T* at = scores + key * kPanel;
    if (HWY_LIKELY(key + static_cast<int>(kSums) <= rows)) {
      QUIRE_UNROLL for (size_t i = 0; i < kSums; i += kSome)
          weigh_some<T>(c, m, at + i * kPanel, key + static_cast<int>(i), acc + i, weights);
    } else {
      QUIRE_UNROLL for (size_t i = 0; i < kSums; i += kSome) {
        const int rest = rows - key - static_cast<int>(i);
        if (rest >= static_cast<int>(kSome)) {
          weigh_some<T>(c, m, at + i * kPanel, key + static_cast<int>(i), acc + i, weights);
        } else if (rest > 0) {
          const VecOf<T> p = weight_at<T>(c, m, at + i * kPanel);
          acc[i] = hn::Add(acc[i], p);
          weights.one(p, at + i * kPanel, key + static_cast<int>(i));
        }
      }
    }
  }
  QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) sums[i] = acc[i];
}

template <class T, class Weights>
HWY_INLINE void softmax_vector(const SoftmaxArgs<T>& args, size_t lane, const Weights& weights) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> c = hn::Set(d, args.exponent_factor);
  const VecOf<T> old_max = hn::LoadU(d, args.m + lane);
  const VecOf<T> m = max_step(hn::LoadU(d, args.max + lane), old_max);
  const VecOf<T> factor = move_factor<T>(c, old_max, m);
  // While nothing is visible 0 is subtracted: -inf - -inf would be NaN.
  const VecOf<T> none = hn::Set(d, -static_cast<T>(__builtin_inff()));
  const VecOf<T> subtracted = hn::IfThenElse(hn::Eq(m, none), hn::Zero(d), m);
  VecOf<T> sums[kPartialSums];
  for (size_t first = 0; first < kPartialSums; first += kSums)
    weigh_groups<T>(args, args.scores + lane, c, subtracted, static_cast<int>(first), sums + first,
                    weights);
  QUIRE_UNROLL for (size_t half = kPartialSums / 2; half != 0; half /= 2)
      QUIRE_UNROLL for (size_t i = 0; i < half; ++i) sums[i] = hn::Add(sums[i], sums[i + half]);
  hn::StoreU(m, d, args.m + lane);
  hn::StoreU(fma(hn::LoadU(d, args.l + lane), factor, sums[0]), d, args.l + lane);
  hn::StoreU(factor, d, args.factor + lane);
}

template <class T>
void softmax(const SoftmaxArgs<T>& args) noexcept {
  for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>)
    softmax_vector<T>(args, lane, WeightsInPlace<T>());
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
