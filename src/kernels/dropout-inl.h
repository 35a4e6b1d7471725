// Applies dropout to weights in place, for both layouts of scores: queries across the lanes and
// keys across the lanes. dropout.h defines the rule. Kernels layer.
#pragma once
#include "kernels/decode/functions.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/math/philox-inl.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// One weight per 32-bit lane, each kept or dropped by its own word.
HWY_INLINE void keep_or_drop(VU word, const DropoutRule& rule, float* weights) {
  const auto kept = hn::RebindMask(kF32, hn::Gt(word, hn::Set(kU32, rule.last_dropped)));
  const V scaled = hn::Mul(hn::LoadU(kF32, weights), hn::Set(kF32, static_cast<float>(rule.scale)));
  hn::StoreU(hn::IfThenElseZero(kept, scaled), kF32, weights);
}
HWY_INLINE void keep_or_drop(VU word, const DropoutRule& rule, double* weights) {
  const hn::RebindToUnsigned<F64> wide;
  const hn::Rebind<uint32_t, F64> narrow;
  constexpr size_t kN = kLanesOf<double>;
  HWY_ALIGN uint32_t words[kLanes];
  hn::Store(word, kU32, words);
  for (size_t i = 0; i < kLanes; i += kN) {
    const auto one = hn::PromoteTo(wide, hn::Load(narrow, words + i));
    const auto kept = hn::RebindMask(kF64, hn::Gt(one, hn::Set(wide, uint64_t{rule.last_dropped})));
    const VD scaled = hn::Mul(hn::LoadU(kF64, weights + i), hn::Set(kF64, rule.scale));
    hn::StoreU(hn::IfThenElseZero(kept, scaled), kF64, weights + i);
  }
}

template <class T>
void drop_panel(const DropPanelArgs<T>& args) noexcept {
  for (size_t lane = 0; lane < kPanel; lane += kLanes) {
    const VU q_idx =
        hn::Add(hn::Set(kU32, args.place.q_idx + static_cast<uint32_t>(lane)), hn::Iota(kU32, 0));
    for (int block = 0; block < kTileKeys / kDropoutKeys; ++block) {
      const uint32_t groups = args.groups >> (4 * block) & 15;
      if (groups == 0) continue;
      for (int i = 0; i < kPanel; ++i) {
        VU words[4] = {
            hn::Set(kU32, args.place.counter + static_cast<uint32_t>(block * kPanel + i)), q_idx,
            hn::Set(kU32, args.place.h), hn::Set(kU32, args.place.b)};
        philox(words, args.rule->key);
        for (int unit = 0; unit < 4; ++unit) {
          const int key = block * kDropoutKeys + unit * kPanel + i;
          if ((groups >> unit & 1) == 0 || key >= args.rows) continue;
          keep_or_drop(words[unit], *args.rule, args.weights + key * kPanel + lane);
        }
      }
    }
  }
}

template <class T>
void drop_row(const DropRowArgs<T>& args) noexcept {
  for (int block = args.unit_begin / 4; block * 4 < args.unit_end; ++block) {
    for (size_t lane = 0; lane < kUnitKeys; lane += kLanes) {
      const uint32_t counter = args.place.counter + static_cast<uint32_t>(block * kUnitKeys) +
                               static_cast<uint32_t>(lane);
      VU words[4] = {hn::Add(hn::Set(kU32, counter), hn::Iota(kU32, 0)),
                     hn::Set(kU32, args.place.q_idx), hn::Set(kU32, args.place.h),
                     hn::Set(kU32, args.place.b)};
      philox(words, args.rule->key);
      for (int i = 0; i < 4; ++i) {
        const int unit = block * 4 + i;
        if (unit < args.unit_begin || unit >= args.unit_end) continue;
        keep_or_drop(words[i], *args.rule, args.weights + unit * kUnitKeys + lane);
      }
    }
  }
  if constexpr (sizeof(T) == 4)
    narrow_weights(args.weights, args.unit_begin, args.unit_end, args.pair_weights,
                   args.value_scales);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
