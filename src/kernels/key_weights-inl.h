// Computes the weights of keys on vectors, by the rules of key_weights.h. Kernels layer.
#pragma once
#include "kernels/decode/softmax-inl.h"
#include "kernels/key_weights.h"
#include "kernels/prefill/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// What a weight adds to the entropy: nothing where it is 0, since the difference may be -inf there.
template <class T>
HWY_INLINE VecOf<T> add_entropy(VecOf<T> p, VecOf<T> inverse, VecOf<T> difference, VecOf<T> sum) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> finite = hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), difference);
  return fma(hn::Mul(p, inverse), finite, sum);
}

// A weight before it is divided by the row's sum; `difference`: score minus the row's maximum.
template <bool kFormula, class T>
HWY_INLINE VecOf<T> weight_of(VecOf<T> score, VecOf<T> difference, VecOf<T> c) {
  constexpr hn::ScalableTag<T> d;
  if constexpr (kFormula)
    return hn::IfThenZeroElse(hn::Eq(score, hn::Set(d, kMinusInf<T>)), score);
  else
    return exp2_softmax(difference, c);
}

template <bool kFormula, class T>
HWY_INLINE void weigh_panel_vector(const PanelWeightsArgs<T>& args, size_t lane) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> c = hn::Set(d, args.exponent_factor), zero = hn::Zero(d);
  const VecOf<T> m = hn::LoadU(d, args.m + lane), inverse = hn::LoadU(d, args.inverse + lane);
  const VecOf<T> counted = hn::LoadU(d, args.counted + lane);
  const auto counts = hn::Ne(counted, zero);
  VecOf<T> entropy[kPartialSums];
  for (int i = 0; i < kPartialSums; ++i) entropy[i] = zero;
  for (uint32_t left = args.groups; left != 0; left &= left - 1) {
    const int first = __builtin_ctz(left) * kPanel;
    for (int i = 0; i < kPanel && first + i < args.rows; ++i) {
      const ptrdiff_t at = ptrdiff_t{first + i} * kPanel + static_cast<ptrdiff_t>(lane);
      const VecOf<T> score = hn::LoadU(d, args.scores + at), difference = hn::Sub(score, m);
      const VecOf<T> p = weight_of<kFormula, T>(score, difference, c);
      if (args.sums != nullptr) {
        const VecOf<T> sum = hn::LoadU(d, args.sums + at);
        hn::StoreU(hn::IfThenElse(counts, fma(p, counted, sum), sum), d, args.sums + at);
      }
      if (args.entropy != nullptr) entropy[i] = add_entropy<T>(p, inverse, difference, entropy[i]);
    }
  }
  if (args.entropy == nullptr) return;
  for (int half = kPartialSums / 2; half != 0; half /= 2)
    for (int i = 0; i < half; ++i) entropy[i] = hn::Add(entropy[i], entropy[i + half]);
  hn::StoreU(hn::Add(hn::LoadU(d, args.entropy + lane), entropy[0]), d, args.entropy + lane);
}

template <class T>
void panel_weights(const PanelWeightsArgs<T>& args) noexcept {
  const auto weigh = args.is_formula ? weigh_panel_vector<true, T> : weigh_panel_vector<false, T>;
  for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>) weigh(args, lane);
}

// One unit, in place; what it adds to the entropy goes into sums.
template <bool kFormula, class T>
HWY_INLINE void weigh_unit(const RowWeightsArgs<T>& args, T* scores,
                           VecOf<T> (&sums)[kUnitKeys / kLanesOf<T>]) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>, kVectors = kUnitKeys / kN;
  const VecOf<T> c = hn::Set(d, args.exponent_factor), m = hn::Set(d, args.m);
  const VecOf<T> inverse = hn::Set(d, args.inverse);
  QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) {
    const VecOf<T> score = hn::LoadU(d, scores + v * kN), difference = hn::Sub(score, m);
    const VecOf<T> p = weight_of<kFormula, T>(score, difference, c);
    hn::StoreU(fma(p, inverse, hn::Zero(d)), d, scores + v * kN);
    if (args.entropy != nullptr) sums[v] = add_entropy<T>(p, inverse, difference, sums[v]);
  }
}

// One tile, in place; returns what it adds to the entropy.
template <bool kFormula, class T>
HWY_INLINE T weigh_row_tile(const RowWeightsArgs<T>& args, T* scores, int keys) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kVectors = kUnitKeys / kLanesOf<T>;
  VecOf<T> entropy[kVectors];
  QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) entropy[v] = hn::Zero(d);
  for (; keys >= kUnitKeys; keys -= kUnitKeys, scores += kUnitKeys)
    weigh_unit<kFormula>(args, scores, entropy);
  if (keys > 0) {
    T last[kUnitKeys];
    for (int i = 0; i < kUnitKeys; ++i) last[i] = i < keys ? scores[i] : kMinusInf<T>;
    weigh_unit<kFormula>(args, last, entropy);
    for (int i = 0; i < keys; ++i) scores[i] = last[i];
  }
  return args.entropy == nullptr ? T{0} : tree_sum<T>(entropy);
}

template <class T>
void row_weights(const RowWeightsArgs<T>& args) noexcept {
  const auto weigh = args.is_formula ? weigh_row_tile<true, T> : weigh_row_tile<false, T>;
  T total = 0;
  for (int64_t split = 0; split < args.keys; split += kSplitKeys) {
    T sum = 0;
    const int64_t end = HWY_MIN(split + kSplitKeys, args.keys);
    for (int64_t key = split; key < end; key += kTileKeys)
      sum +=
          weigh(args, args.scores + key, static_cast<int>(HWY_MIN(int64_t{kTileKeys}, end - key)));
    total += sum;
  }
  if (args.entropy != nullptr) *args.entropy = total;
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
