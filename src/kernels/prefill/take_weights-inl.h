// Takes weights that a formula gave, in place of the softmax, for panels of prefill. They are
// summed as in the softmax: 16 partial sums by key, then a tree. Kernels layer.
#pragma once
#include "kernels/prefill/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Hidden ones, which are -inf, become 0.
template <class T>
HWY_INLINE VecOf<T> take_weight(T* at) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> none = hn::Set(d, -static_cast<T>(__builtin_inff()));
  const VecOf<T> x = hn::LoadU(d, at), p = hn::IfThenZeroElse(hn::Eq(x, none), x);
  hn::StoreU(p, d, at);
  return p;
}

// Keys `first` .. first + kSums - 1 of each group, their sums to `sums`.
template <class T>
HWY_INLINE void take_groups(const SoftmaxArgs<T>& args, T* weights, int first, VecOf<T>* sums) {
  constexpr hn::ScalableTag<T> d;
  VecOf<T> acc[kSums];
  QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) acc[i] = hn::Zero(d);
  for (uint32_t left = args.groups; left != 0; left &= left - 1) {
    const int key = __builtin_ctz(left) * kPanel + first;
    T* at = weights + ptrdiff_t{key} * kPanel;
    QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) {
      if (HWY_LIKELY(key + static_cast<int>(i) < args.rows))
        acc[i] = hn::Add(acc[i], take_weight(at + i * kPanel));
    }
  }
  QUIRE_UNROLL for (size_t i = 0; i < kSums; ++i) sums[i] = acc[i];
}

template <class T>
void take_weights(const SoftmaxArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>) {
    VecOf<T> sums[kPartialSums];
    for (size_t first = 0; first < kPartialSums; first += kSums)
      take_groups(args, args.scores + lane, static_cast<int>(first), sums + first);
    QUIRE_UNROLL for (size_t half = kPartialSums / 2; half != 0; half /= 2)
        QUIRE_UNROLL for (size_t i = 0; i < half; ++i) sums[i] = hn::Add(sums[i], sums[i + half]);
    hn::StoreU(hn::Zero(d), d, args.m + lane);
    hn::StoreU(hn::Add(hn::LoadU(d, args.l + lane), sums[0]), d, args.l + lane);
    hn::StoreU(hn::Set(d, T{1}), d, args.factor + lane);
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
