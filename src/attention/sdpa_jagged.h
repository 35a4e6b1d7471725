// A jagged call of scaled_dot_product_attention, checked, and as the request of a plan, forward or
// backward. Attention layer.
#pragma once
#include "attention/jagged_sequences.h"
#include "attention/sdpa_backend.h"
#include "attention/sdpa_mask.h"
#include "plan/forward_request.h"
#include "quire/scaled_dot_product_attention.h"

namespace quire::attention {

// A call, checked, with heads of size 1 broadcast.
struct JaggedCall {
  Jagged q, k, v;
  JaggedSequences q_rows, k_rows, v_rows;

  BackendProblem problem() const { return {q.values.dim(2), v.values.dim(2)}; }
};

/// Throws Error for everything that does not fit.
JaggedCall jagged_call(const Jagged& q, const Jagged& k, const Jagged& v,
                       const SdpaOptions& options);

/// The rule of attn_mask or is_causal.
SdpaRules jagged_rules(const JaggedCall& call, const SdpaOptions& options);

plan::ForwardRequest jagged_sdpa_request(const JaggedCall& call, const SdpaOptions& options);

}  // namespace quire::attention
