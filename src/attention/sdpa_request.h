// A dense call of scaled_dot_product_attention as the request of a plan, forward or backward, and
// the shapes of what it gives. Attention layer.
#pragma once
#include "attention/sdpa_call.h"
#include "attention/sdpa_mask.h"
#include "plan/forward_request.h"

namespace quire::attention {

/// What a mask tensor of this call must broadcast to.
MaskTarget mask_target(const SdpaCall& call);

/// Makes the block mask of a rule.
plan::ForwardRequest sdpa_request(const SdpaCall& call, const SdpaRules& rules,
                                  const SdpaOptions& options);

/// The shape of lse: out_shape without its last axis.
Shape sdpa_rows(const SdpaCall& call);
/// Of a call without keys: all -inf.
Tensor sdpa_lse_of_nothing(const SdpaCall& call);

}  // namespace quire::attention
