// SdpaCall: a dense call of scaled_dot_product_attention, checked and brought to the four axes the
// kernels know: leading axes merged into one, axes of size 1 broadcast. Texts of errors begin with
// [scaled_dot_product_attention]. Attention layer.
#pragma once
#include <vector>

#include "quire/flex_attention.h"
#include "quire/scaled_dot_product_attention.h"

namespace quire::attention {

struct SdpaCall {
  ConstTensorView q;         // [B, Hq, L, E]
  ConstTensorView k, v;      // [B, Hkv, S, E], [B, Hkv, S, Ev]
  Shape batch;               // the leading axes; their product is B
  Shape out_shape;           // [batch..., Hq, L, Ev], without heads if no input has any
  AttentionShape shape;      // of q, k, v
  std::vector<Tensor> held;  // copies of inputs whose leading axes strides cannot merge
};

/// Throws Error naming what does not fit: ranks, dtypes, leading axes, heads, dims, lengths, scale,
/// dropout_p, a mask beside is_causal. The mask tensor's own shape is checked where it becomes a
/// rule.
SdpaCall sdpa_call(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                   const SdpaOptions& options);

// Parts of that which jagged calls share.

/// Floats, and of one kind.
void validate_dtypes(DType q, DType k, DType v);

/// Heads after broadcasting: equal, or 1 on any side, or groups with enable_gqa. kv is q, or 1, or
/// divides it.
struct SdpaHeads {
  std::int64_t q = 0, kv = 0;
};
SdpaHeads common_heads(std::int64_t q, std::int64_t k, std::int64_t v, bool enable_gqa);

/// What does not depend on the inputs: scale, dropout_p, a mask beside is_causal.
void validate_options(const SdpaOptions& options);

}  // namespace quire::attention
