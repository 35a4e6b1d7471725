// The softmax of the decode kernel for a few keys of a tile that lie next to each other, all rows
// in one call, so that a row need not wait for the one before. Their bits are those of the whole
// tile: the maximum does not depend on an order, a weight depends on nothing else, and hidden keys
// add 0 to the 16 partial sums, to which the others are added at their places. Kernels layer.
#pragma once
#include "kernels/decode/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Copies the scores of a row to where its weights will be, hidden ones as -inf. Returns the
// largest.
template <class T>
HWY_INLINE T take_scores(const T* scores, const uint64_t* seen, int keys, T* to) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>, kVectors = kUnitKeys / kN;
  const VecOf<T> none = hn::Set(d, kMinusInf<T>);
  VecOf<T> max = none;
  for (int first = 0; first < keys; first += kUnitKeys) {
    const char* const bits = reinterpret_cast<const char*>(seen) + first / 8;
    QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      const auto x =
          hn::IfThenElse(mask_at(d, bits, v), hn::LoadU(d, scores + first + v * kN), none);
      hn::StoreU(x, d, to + first + v * kN);
      max = max_step(x, max);
    }
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));  // there is no NaN among them
}

template <class T>
HWY_INLINE T sum_by_place(const T* weights, const int16_t* places, int keys) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>, kVectors = kUnitKeys / kN;
  HWY_ALIGN T partial[kPartialSums] = {};
  for (int i = 0; i < keys; ++i) partial[places[i] % kPartialSums] += weights[i];
  VecOf<T> sums[kVectors];
  QUIRE_UNROLL for (size_t v = 0; v < kVectors; ++v) sums[v] = hn::Load(d, partial + v * kN);
  return tree_sum<T>(sums);
}

// The keys of a part by partial sum, for all rows that share them.
template <class T>
class FewSums {
 public:
  explicit HWY_INLINE FewSums(const FewSoftmaxArgs<T>& args)
      : places_(args.places), keys_(args.keys) {}
  HWY_INLINE T of(const T* weights) const { return sum_by_place(weights, places_, keys_); }

 private:
  const int16_t* places_;
  int keys_;
};

#if HWY_TARGET <= HWY_AVX3 && HWY_TARGET != HWY_SCALAR
// In layers: the first key of each of the 16 places among 32 keys, the second ones, and so on. A
// layer is a permutation of two vectors of weights, where five additions one after the other, some
// of them to the same sum, would be needed for each.
template <>
class FewSums<float> {
 public:
  explicit HWY_INLINE FewSums(const FewSoftmaxArgs<float>& args)
      : places_(args.places), keys_(args.keys), layered_(args.rows > 1) {
    if (layered_) find_layers();
  }
  HWY_INLINE float of(const float* weights) const {
    if (!layered_) return sum_by_place(weights, places_, keys_);
    __m512 sum = _mm512_setzero_ps();
    const uint8_t(*layer)[kPartialSums] = layers_;
    for (int first = 0, group = 0; first < keys_; first += kGroup, ++group) {
      const __m512 low = _mm512_loadu_ps(weights + first);
      const __m512 high = _mm512_loadu_ps(weights + first + kGroup / 2);
      for (const auto* const end = layer + counts_[group]; layer != end; ++layer) {
        const __m512i from =
            _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(layer)));
        const __mmask16 exists = _mm512_cmpge_epi32_mask(from, _mm512_setzero_si512());
        sum = _mm512_add_ps(sum, _mm512_maskz_permutex2var_ps(exists, low, from, high));
      }
    }
    V sums[1] = {V{sum}};
    return tree_sum<float>(sums);
  }

 private:
  static constexpr int kGroup = 32, kMostGroups = kTileKeys / 2 / kGroup;

  HWY_INLINE void find_layers() {
    uint8_t(*layer)[kPartialSums] = layers_;
    for (int first = 0, group = 0; first < keys_; first += kGroup, ++group) {
      uint8_t found[kPartialSums] = {};
      int count = 0;
      for (int i = first; i < HWY_MIN(keys_, first + kGroup); ++i) {
        const int place = places_[i] % kPartialSums, of = found[place]++;
        if (of == count)
          _mm_store_si128(reinterpret_cast<__m128i*>(layer[count++]), _mm_set1_epi8(-1));
        layer[of][place] = static_cast<uint8_t>(i - first);
      }
      counts_[group] = count;
      layer += count;
    }
  }

  const int16_t* places_;
  int keys_;
  bool layered_;
  int counts_[kMostGroups];
  // A place comes at most 16 times in a tile.
  alignas(16) uint8_t layers_[kMostGroups * kPartialSums][kPartialSums];
};
#endif

// One row of few_softmax.
template <class T>
HWY_INLINE T few_weights(const FewSoftmaxArgs<T>& args, const FewSums<T>& sums, int row) {
  constexpr hn::ScalableTag<T> d;
  T* const weights = args.weights + row * kDecodeScoreStep;
  const T max = take_scores(args.scores + row * kDecodeScoreStep, args.seen + row * args.seen_step,
                            args.keys, weights);
  const T old = args.m[row], m = max > old ? max : old;
  const VecOf<T> c = hn::Set(d, args.exponent_factor);
  // While nothing is visible 0 is subtracted: -inf - -inf would be NaN.
  const VecOf<T> subtracted = hn::Set(d, m == kMinusInf<T> ? T{0} : m);
  const int end = (args.keys + kUnitKeys - 1) / kUnitKeys * kUnitKeys;
  for (int i = 0; i < end; i += static_cast<int>(kLanesOf<T>)) weigh<T>(c, subtracted, weights + i);
  const VecOf<T> factor = move_factor<T>(c, hn::Set(d, old), hn::Set(d, m));
  const T sum = sums.of(weights);
  args.l[row] = hn::GetLane(fma(hn::Set(d, args.l[row]), factor, hn::Set(d, sum)));
  args.m[row] = m;
  return hn::GetLane(factor);
}

// The same for weights that a formula gave.
template <class T>
HWY_INLINE T few_taken(const FewSoftmaxArgs<T>& args, const FewSums<T>& sums, int row) {
  T* const weights = args.weights + row * kDecodeScoreStep;
  take_scores(args.scores + row * kDecodeScoreStep, args.seen + row * args.seen_step, args.keys,
              weights);
  const int end = (args.keys + kUnitKeys - 1) / kUnitKeys * kUnitKeys;
  for (int i = 0; i < end; i += static_cast<int>(kLanesOf<T>)) take_weight(weights + i);
  args.l[row] += sums.of(weights);
  args.m[row] = 0;
  return 1;
}

template <class T>
bool few_softmax(const FewSoftmaxArgs<T>& args) noexcept {
  const FewSums<T> sums(args);
  bool moved = false;
  for (int row = 0; row < args.rows; ++row) {
    const uint64_t* const seen = args.seen + row * args.seen_step;
    T factor = 1;
    if ((seen[0] | seen[1]) != 0)
      factor = args.takes_weights ? few_taken(args, sums, row) : few_weights(args, sums, row);
    else  // the row's state stays as it is
      for (int i = 0; i < args.keys; ++i) args.weights[row * kDecodeScoreStep + i] = 0;
    args.factors[row] = factor;
    moved |= factor != 1;
  }
  return moved;
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
