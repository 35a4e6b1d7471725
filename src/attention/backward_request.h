// A dense backward call as the request a plan is made of. Attention layer.
#pragma once
#include "plan/backward_request.h"
#include "quire/flex_attention_backward.h"

namespace quire::attention {

/// Validates the forward's options. Throws Error "[flex_attention_backward] ...".
plan::BackwardRequest backward_request(const AttentionShape& shape,
                                       const FlexAttentionBackwardOptions& options);

/// What a request takes from the public options beside the forward's request: what is wanted, and
/// the buffers of both mods that get a gradient.
void set_wanted(const WantedGradients& wanted, const std::optional<ScoreMod>& score_mod,
                const std::optional<MaskMod>& mask_mod, plan::BackwardRequest& request);

}  // namespace quire::attention
