// The elementwise steps of the backward pass between its products: scores to weights, gradients of
// weights to gradients of scores; also sums and checks of single rows. Kernels layer.
#pragma once
#include "kernels/backward/functions.h"
#include "kernels/prefill/scores-inl.h"
#include "kernels/prefill/softmax-inl.h"
#include "kernels/tile/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// x where visible, else +0. `shift`: where the bits of these lanes begin in a word.
template <class T>
HWY_INLINE VecOf<T> if_visible(const uint64_t* words, int row, int shift, VecOf<T> x) {
  if (words == nullptr) return x;
  const uint64_t bits = words[row] >> shift;
  const auto visible = mask_at(hn::ScalableTag<T>(), reinterpret_cast<const char*>(&bits), 0);
  return hn::IfThenElseZero(visible, x);
}

template <class T>
HWY_INLINE void weigh_vector(const BlockShape& block, T* HWY_RESTRICT scores, VecOf<T> lse,
                             int shift) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> c = hn::Set(d, static_cast<T>(kLog2e));
  const uint64_t* const words = block.words;
  if (words == nullptr) {
    for (int r = 0; r < block.rows; ++r, scores += kPanel)
      hn::StoreU(exp2_softmax(hn::Sub(hn::LoadU(d, scores), lse), c), d, scores);
    return;
  }
  for (int r = 0; r < block.rows; ++r, scores += kPanel) {
    const VecOf<T> p = exp2_softmax(hn::Sub(hn::LoadU(d, scores), lse), c);
    hn::StoreU(if_visible<T>(words, r, shift, p), d, scores);
  }
}

template <class T>
void weights(const WeightsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  for (int panel = 0; panel < args.block.panels; ++panel) {
    for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>) {
      const int offset = panel * kPanel + static_cast<int>(lane);
      T* const scores = args.scores + panel * kScorePanelStep + lane;
      const VecOf<T> lse = hn::LoadU(d, args.lse + offset);
      weigh_vector(args.block, scores, lse, args.block.first_lane + offset);
    }
  }
}

template <class T>
HWY_INLINE void gradient_vector(const ScoreGradientsArgs<T>& args, ptrdiff_t at, VecOf<T> delta,
                                int shift) {
  constexpr hn::ScalableTag<T> d;
  T* gradients = args.gradients + at;
  const T* weights = args.weights + at;
  const uint64_t* const words = args.block.words;
  for (int r = 0; r < args.block.rows; ++r, gradients += kPanel, weights += kPanel) {
    const VecOf<T> p = hn::LoadU(d, weights);
    VecOf<T> x = hn::Mul(p, hn::Sub(hn::LoadU(d, gradients), delta));
    if (args.only_weighted) x = hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), x);
    hn::StoreU(if_visible<T>(words, r, shift, x), d, gradients);
  }
}

template <class T>
void score_gradients(const ScoreGradientsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  for (int panel = 0; panel < args.block.panels; ++panel) {
    for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>) {
      const int offset = panel * kPanel + static_cast<int>(lane);
      gradient_vector(args, panel * kScorePanelStep + static_cast<ptrdiff_t>(lane),
                      hn::LoadU(d, args.delta + offset), args.block.first_lane + offset);
    }
  }
}

// change(x, offset of its lanes) for all elements of a block, in place; 0 where hidden.
template <class T, class Change>
HWY_INLINE void for_block(const BlockShape& block, T* data, const Change& change) {
  constexpr hn::ScalableTag<T> d;
  for (int panel = 0; panel < block.panels; ++panel) {
    for (size_t lane = 0; lane < kPanel; lane += kLanesOf<T>) {
      const int offset = panel * kPanel + static_cast<int>(lane);
      T* at = data + panel * kScorePanelStep + lane;
      for (int r = 0; r < block.rows; ++r, at += kPanel)
        hn::StoreU(if_visible<T>(block.words, r, block.first_lane + offset,
                                 change(hn::LoadU(d, at), offset)),
                   d, at);
    }
  }
}

template <class T>
void formula_weights(const FormulaWeightsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  for_block(args.block, args.weights, [&](VecOf<T> x, int offset) HWY_ATTR {
    const VecOf<T> inverse = hn::LoadU(d, args.inverse + offset);
    const VecOf<T> none = hn::Set(d, -static_cast<T>(__builtin_inff()));
    x = hn::IfThenZeroElse(hn::Eq(x, none), hn::Mul(x, inverse));
    return hn::IfThenZeroElse(hn::Eq(inverse, hn::Zero(d)), x);
  });
}

template <class T>
void formula_gradients(const FormulaGradientsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  for_block(args.block, args.gradients, [&](VecOf<T> x, int offset) HWY_ATTR {
    const VecOf<T> inverse = hn::LoadU(d, args.inverse + offset);
    x = hn::Mul(inverse, hn::Sub(x, hn::LoadU(d, args.delta + offset)));
    return hn::IfThenZeroElse(hn::Eq(inverse, hn::Zero(d)), x);
  });
}

template <class T>
void apply_slopes(const ApplySlopesArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> uniform = hn::Set(d, args.uniform), zero = hn::Zero(d);
  const ptrdiff_t count = ptrdiff_t{args.block.rows} * kPanel;
  for (int panel = 0; panel < args.block.panels; ++panel) {
    T* const gradients = args.gradients + panel * kScorePanelStep;
    const T* const slopes =
        args.slopes == nullptr ? nullptr : args.slopes + panel * kScorePanelStep;
    for (ptrdiff_t i = 0; i < count; i += static_cast<ptrdiff_t>(kLanesOf<T>)) {
      const VecOf<T> x = hn::LoadU(d, gradients + i);
      const VecOf<T> slope = slopes == nullptr ? uniform : hn::LoadU(d, slopes + i);
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, zero), hn::Mul(x, slope)), d, gradients + i);
    }
  }
}

enum class FactorKind { kNone, kRow, kElement };

// Sums the lanes of C vectors at once, so that no addition waits for the one before.
template <class T, FactorKind kFactor, size_t C>
HWY_INLINE void add_lane_vectors(const AddLaneSumsArgs<T>& args, size_t vector) {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>;
  const VecOf<T> zero = hn::Zero(d);
  T* const to = args.sums + vector * kN;
  const T* gradients = args.gradients + score_offset<T>(vector);
  const T* factors = args.factors;
  if constexpr (kFactor == FactorKind::kElement) factors += vector * kN;
  VecOf<T> sums[C];
  QUIRE_UNROLL for (size_t c = 0; c < C; ++c) sums[c] = hn::LoadU(d, to + c * kN);
  for (int r = 0; r < args.block.rows; ++r, gradients += kPanel) {
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) {
      VecOf<T> x = hn::LoadU(d, gradients + score_offset<T>(c));
      if constexpr (kFactor != FactorKind::kNone) {
        const VecOf<T> factor =
            kFactor == FactorKind::kRow ? hn::Set(d, *factors) : hn::LoadU(d, factors + c * kN);
        x = hn::IfThenZeroElse(hn::Eq(x, zero), hn::Mul(x, factor));
      }
      sums[c] = hn::Add(sums[c], x);
    }
    if constexpr (kFactor != FactorKind::kNone) factors += args.factor_step;
  }
  QUIRE_UNROLL for (size_t c = 0; c < C; ++c) hn::StoreU(sums[c], d, to + c * kN);
}

template <class T, FactorKind kFactor>
HWY_INLINE void add_lanes_of(const AddLaneSumsArgs<T>& args) {
  constexpr size_t kPer = kVectorsOf<T>, kMost = kPer < 4 ? 4 : kPer;
  const size_t vectors = static_cast<size_t>(args.block.panels) * kPer;
  size_t v = 0;
  for (; v + kMost <= vectors; v += kMost) add_lane_vectors<T, kFactor, kMost>(args, v);
  for (; v < vectors; v += kPer) add_lane_vectors<T, kFactor, kPer>(args, v);
}

template <class T>
void add_lane_sums(const AddLaneSumsArgs<T>& args) noexcept {
  if (args.factors == nullptr) return add_lanes_of<T, FactorKind::kNone>(args);
  if (args.factor_per_row) return add_lanes_of<T, FactorKind::kRow>(args);
  add_lanes_of<T, FactorKind::kElement>(args);
}

template <class T>
void add_rows(const AddRowsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> scale = hn::Set(d, args.scale);
  const T* from = args.from;
  T* to = args.to;
  for (int r = 0; r < args.rows; ++r, from += args.from_step, to += args.to_step)
    for (int c = 0; c < args.columns; c += static_cast<int>(kLanesOf<T>))
      hn::StoreU(fma(hn::LoadU(d, from + c), scale, hn::LoadU(d, to + c)), d, to + c);
}

template <class T>
void lane_dots(const LaneDotsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  const int length = chain_dims(args.dims, false);
  for (int lane = 0; lane < args.panels * kPanel; lane += static_cast<int>(kLanesOf<T>)) {
    const T *a = args.a + lane, *b = args.b + lane;
    VecOf<T> sum = hn::Zero(d);
    for (int done = 0; done < args.dims; done += length) {
      VecOf<T> chain = hn::Zero(d);
      for (int i = HWY_MIN(length, args.dims - done); i > 0; --i, a += kQueryTile, b += kQueryTile)
        chain = fma(hn::LoadU(d, a), hn::LoadU(d, b), chain);
      sum = done == 0 ? chain : hn::Add(sum, chain);
    }
    hn::StoreU(sum, d, args.out + lane);
  }
}

template <class T>
bool is_finite(const T* row, int columns) noexcept {
  constexpr hn::ScalableTag<T> d;
  VecOf<T> check = hn::Zero(d);  // x - x is 0, or NaN
  for (int c = 0; c < columns; c += static_cast<int>(kLanesOf<T>)) {
    const VecOf<T> x = hn::LoadU(d, row + c);
    check = hn::Add(check, hn::Sub(x, x));
  }
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
