// A jagged call as the request a plan is made of, and one run of such a plan over its values.
// Attention layer.
#pragma once
#include "attention/jagged_sequences.h"
#include "plan/forward_plan.h"
#include "quire/jagged.h"

namespace quire::attention {

/// Reads offsets and lengths and proves the masks of a mask_mod. Throws Error for everything that
/// does not fit (jagged.h); texts begin with "[where]".
plan::ForwardRequest jagged_request(const char* where, const Jagged& q, const Jagged& k,
                                    const Jagged& v, const JaggedAttentionOptions& options);

/// What a run writes to: out in q's order, holes 0, and the stats that were asked for.
struct JaggedOutputs {
  Tensor out;
  AuxOutput aux = {};
};

/// Allocates the outputs and runs the plan once. q, k and v are those of the request.
JaggedOutputs run_jagged(plan::ForwardPlan& plan, const Jagged& q, const Jagged& k, const Jagged& v,
                         const AuxRequest& aux = {});

/// The orders of the values of q, k and v; out and stats have q's.
struct JaggedOrders {
  JaggedOrder q = JaggedOrder::kTokens, k = JaggedOrder::kTokens, v = JaggedOrder::kTokens;
};

/// The values of a jagged call as the plan takes them; `lse` and `max_scores` row-major or null.
/// Allocates nothing.
plan::ForwardTensors jagged_tensors(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const TensorView& out,
                                    const JaggedOrders& orders);

}  // namespace quire::attention
