// What the backward pass does with every element of a tile between its products: scores to weights,
// gradients of weights to gradients of scores; and sums and checks of single rows. Kernels layer.
#pragma once
#include "kernels/backward_functions.h"
#include "kernels/softmax-inl.h"
#include "kernels/tile_rows-inl.h"

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

template <class T, class Form>
HWY_INLINE void weigh_vector(const Form& form, const BlockShape& block, T* HWY_RESTRICT scores,
                             VecOf<T> lse, int shift) {
  constexpr hn::ScalableTag<T> d;
  const uint64_t* const words = block.words;
  if (words == nullptr) {
    for (int r = 0; r < block.rows; ++r, scores += kPanel)
      hn::StoreU(exp2_softmax(form.score_exponent(hn::LoadU(d, scores), lse)), d, scores);
    return;
  }
  for (int r = 0; r < block.rows; ++r, scores += kPanel) {
    const VecOf<T> p = exp2_softmax(form.score_exponent(hn::LoadU(d, scores), lse));
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
      const int shift = args.block.first_lane + offset;
      if (args.natural)
        weigh_vector(NaturalForm<T>(args.scale), args.block, scores, lse, shift);
      else
        weigh_vector(ScaledForm<T>(args.scale), args.block, scores, lse, shift);
    }
  }
}

template <class T>
HWY_INLINE void gradient_vector(const ScoreGradientsArgs<T>& args, ptrdiff_t at, VecOf<T> delta,
                                int shift) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> scale = hn::Set(d, args.scale);
  T* gradients = args.gradients + at;
  const T* weights = args.weights + at;
  const uint64_t* const words = args.block.words;
  for (int r = 0; r < args.block.rows; ++r, gradients += kPanel, weights += kPanel) {
    const VecOf<T> p = hn::LoadU(d, weights);
    VecOf<T> x = hn::Mul(p, fms(hn::LoadU(d, gradients), scale, delta));
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

template <class T>
void apply_slopes(const ApplySlopesArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> scale = hn::Set(d, args.scale), zero = hn::Zero(d);
  const ptrdiff_t count = ptrdiff_t{args.block.rows} * kPanel;
  for (int panel = 0; panel < args.block.panels; ++panel) {
    T* const gradients = args.gradients + panel * kScorePanelStep;
    const T* const slopes =
        args.slopes == nullptr ? nullptr : args.slopes + panel * kScorePanelStep;
    for (ptrdiff_t i = 0; i < count; i += static_cast<ptrdiff_t>(kLanesOf<T>)) {
      const VecOf<T> x = hn::LoadU(d, gradients + i);
      const VecOf<T> scaled = hn::Mul(x, scale);
      const VecOf<T> moved = slopes == nullptr ? scaled : hn::Mul(scaled, hn::LoadU(d, slopes + i));
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, zero), moved), d, gradients + i);
    }
  }
}

template <class T>
void add_rows(const AddRowsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  const T* from = args.from;
  T* to = args.to;
  for (int r = 0; r < args.rows; ++r, from += args.from_step, to += args.to_step)
    for (int c = 0; c < args.columns; c += static_cast<int>(kLanesOf<T>))
      hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::LoadU(d, from + c)), d, to + c);
}

template <class T>
void row_dots(const RowDotsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kVectors = kVectorsOf<T>;
  const T *a = args.a, *b = args.b;
  for (int r = 0; r < args.rows; ++r, a += args.step, b += args.step) {
    VecOf<T> sums[kVectors];
    QUIRE_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[i] = hn::Zero(d);
    for (int c = 0; c < args.columns; c += kPanel) {
      QUIRE_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[i] = fma(
          hn::LoadU(d, a + c + i * kLanesOf<T>), hn::LoadU(d, b + c + i * kLanesOf<T>), sums[i]);
    }
    T lanes[kPanel];
    QUIRE_UNROLL for (size_t i = 0; i < kVectors; ++i)
        hn::StoreU(sums[i], d, lanes + i * kLanesOf<T>);
    for (int half = kPanel / 2; half != 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    args.out[r] = lanes[0];
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
