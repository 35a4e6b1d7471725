// The sums of an indexer (top_k_keys.h): scores of all heads of a query, each through relu and
// times the head's weight. Keys are across the lanes. Kernels layer.
#pragma once
#include "kernels/prefill/forward_functions.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
void weigh_heads(const WeighHeadsArgs<T>& args) noexcept {
  constexpr hn::ScalableTag<T> d;
  constexpr size_t kN = kLanesOf<T>;
  for (int panel = 0; panel < args.panels; ++panel) {
    const T* const scores = args.scores + panel * kScorePanelStep;
    for (size_t lane = 0; lane < kPanel; lane += kN) {
      T* const to = args.sums + panel * kPanel + lane;
      VecOf<T> sum = hn::LoadU(d, to);
      for (int row = 0; row < args.rows; ++row) {
        const VecOf<T> score = hn::LoadU(d, scores + row * kPanel + lane);
        const VecOf<T> kept = hn::IfThenZeroElse(hn::Lt(score, hn::Zero(d)), score);
        sum = fma(hn::Set(d, args.weights[row]), kept, sum);
      }
      hn::StoreU(sum, d, to);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
