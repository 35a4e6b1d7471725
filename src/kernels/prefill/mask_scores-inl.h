// Hides scores: those whose bit is not set become -inf, and the running maximum is raised by the
// others. Kernels layer.
#pragma once
#include "kernels/product-inl.h"
#include "kernels/tile/tile_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// One vector of lanes, all rows. `shift`: where its bits begin in a word.
template <class T>
HWY_INLINE void mask_vector(T* HWY_RESTRICT scores, int rows, const uint64_t* HWY_RESTRICT words,
                            int shift, T* HWY_RESTRICT max) {
  constexpr hn::ScalableTag<T> d;
  const VecOf<T> hidden = hn::Set(d, -static_cast<T>(__builtin_inff()));
  VecOf<T> m = hn::LoadU(d, max);
  for (int r = 0; r < rows; ++r, scores += kPanel) {
    const uint64_t bits = words[r] >> shift;
    const auto visible = mask_at(d, reinterpret_cast<const char*>(&bits), 0);
    const VecOf<T> x = hn::IfThenElse(visible, hn::LoadU(d, scores), hidden);
    m = max_step(x, m);
    hn::StoreU(x, d, scores);
  }
  hn::StoreU(m, d, max);
}

template <class T>
void mask_scores(const MaskScoresArgs<T>& args) noexcept {
  constexpr size_t kN = kLanesOf<T>;
  for (int panel = 0; panel < args.panels; ++panel)
    for (size_t lane = 0; lane < kPanel; lane += kN)
      mask_vector(args.scores + panel * kScorePanelStep + lane, args.rows, args.words,
                  args.first_lane + panel * kPanel + static_cast<int>(lane),
                  args.max + static_cast<size_t>(panel * kPanel) + lane);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
