// The MATH backend: the f64 reference, one element at a time. Attention layer.
#pragma once
#include <cstdint>

#include "attention/sdpa_mask.h"
#include "quire/tensor.h"

namespace quire::attention {

struct MathOutput {
  Tensor out;  // [B, Hq, L, Ev] in q's dtype, rounded once
  Tensor lse;  // [B, Hq, L], f32, or f64 of f64 calls
};

/// q [B, Hq, L, E], k [B, Hkv, S, E], v [B, Hkv, S, Ev]. b_begin: b of the first batch entry.
MathOutput sdpa_math(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const SdpaRules& rules, const SdpaOptions& options, std::int64_t b_begin = 0);

}  // namespace quire::attention
