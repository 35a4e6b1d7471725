// One run of a backward plan over the values of a jagged batch. Attention layer.
#pragma once
#include "plan/backward_plan.h"
#include "quire/flex_attention_backward.h"

namespace quire::attention {

/// Validates out, lse and the gradients given, allocates those wanted (holes 0) and runs the plan
/// once. q, k and v are those of its request.
AttentionGradients run_jagged_backward(const char* where, plan::BackwardPlan& plan,
                                       const JaggedBackwardInputs& inputs);

}  // namespace quire::attention
