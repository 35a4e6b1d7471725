// Weights of the decode kernel as integers of 16 bits: one row of a tile, keys across the lanes, all
// under one power of two (attention_order.h). Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/decode/functions.h"
#include "kernels/integer_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

inline float code_weights(const CodeWeightsArgs& args) noexcept {
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Rebind<int16_t, I32> narrow;
  const int begin = args.unit_begin * kUnitKeys, end = args.unit_end * kUnitKeys;
  const auto weight = [&](int i) {
    return weight_of_codes(hn::LoadU(kF32, args.weights + i), hn::LoadU(kF32, args.value_scales + i));
  };
  VI largest = hn::Zero(kI32);
  for (int i = begin; i < end; i += kN) largest = hn::Max(largest, magnitude_bits(weight(i)));
  const IntegerCoding coding = coding_of(largest);
  for (int i = begin; i < end; i += kN)
    hn::StoreU(hn::DemoteTo(narrow, coding.code(weight(i))), narrow, args.to + i);
  return hn::GetLane(coding.inverse);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
