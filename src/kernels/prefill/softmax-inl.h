// The online softmax of one panel of queries: scores to weights in place, running maximum and sum,
// and the factor for what was summed before. Every decision is per row (per lane), never per
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

// One score to its weight, which is returned.
template <class T>
HWY_INLINE VecOf<T> weigh(VecOf<T> c, VecOf<T> m, T* at) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> p = exp2_softmax(hn::Sub(hn::LoadU(d, at), m), c);
  hn::StoreU(p, d, at);
  return p;
}

// Keys `first` .. first + kSums - 1 of each group: weights in place, their sums to `sums`.
template <class T>
HWY_INLINE void weigh_groups(const SoftmaxArgs<T>& args, T* scores, VecOf<T> c, VecOf<T> m,
                             int first, VecOf<T>* sums) {
  constexpr hn::ScalableTag<T> d;
  VecOf<T> acc[kSums];
  QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) acc[i] = hn::Zero(d);
  const int rows = args.rows;
  for (uint32_t left = args.groups; left != 0; left &= left - 1) {
    const int key = __builtin_ctz(left) * kPanel + first;
    T* at = scores + key * kPanel;
    if (HWY_LIKELY(key + static_cast<int>(kSums) <= rows)) {
      QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) acc[i] =
          hn::Add(acc[i], weigh<T>(c, m, at + i * kPanel));
    } else {
      QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) if (key + static_cast<int>(i) < rows) acc[i] =
          hn::Add(acc[i], weigh<T>(c, m, at + i * kPanel));
    }
  }
  QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) sums[i] = acc[i];
}

template <class T>
HWY_INLINE void softmax_vector(const SoftmaxArgs<T>& args, size_t lane) {
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
    weigh_groups(args, args.scores + lane, c, subtracted, static_cast<int>(first), sums + first);
  QUIRE_UNROLL for (size_t half = kPartialSums / 2; half != 0; half /= 2)
      QUIRE_UNROLL for (size_t i = 0; i < half; ++i) sums[i] = hn::Add(sums[i], sums[i + half]);
  hn::StoreU(m, d, args.m + lane);
  hn::StoreU(fma(hn::LoadU(d, args.l + lane), factor, sums[0]), d, args.l + lane);
  hn::StoreU(factor, d, args.factor + lane);
}

template <class T>
void softmax(const SoftmaxArgs<T>& args) noexcept {
  for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>) softmax_vector(args, lane);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
