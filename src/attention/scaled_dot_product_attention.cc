// scaled_dot_product_attention over dense tensors: check, make rules of masks, choose a backend,
// run it. Jagged batches: sdpa_jagged.cc. Attention layer.
#include "quire/scaled_dot_product_attention.h"

#include "attention/forward_request.h"
#include "attention/sdpa_backend.h"
#include "attention/sdpa_call.h"
#include "attention/sdpa_mask.h"
#include "attention/sdpa_math.h"
#include "plan/forward_plan.h"
#include "quire/error.h"

namespace quire {
namespace {

using attention::SdpaCall;
using attention::SdpaRules;

attention::BackendProblem problem_of(const SdpaCall& call) {
  return {call.shape.q_dtype, call.shape.head_dim, call.shape.v_head_dim};
}

SdpaRules rules_of(const SdpaCall& call, const SdpaOptions& options) {
  return attention::sdpa_rules(
      options, {call.batch, call.shape.q_heads, call.shape.q_len, call.shape.kv_len});
}

void run_fused(const SdpaCall& call, const SdpaRules& rules, const SdpaOptions& options,
               const TensorView& out) {
  const AttentionShape& s = call.shape;
  FlexAttentionOptions how{.score_mod = rules.score_mod,
                           .scale = options.scale,
                           .enable_gqa = true,
                           .executor = options.executor};
  if (rules.mask_mod)
    how.block_mask = create_block_mask(*rules.mask_mod, s.batch, s.q_heads, s.q_len, s.kv_len,
                                       {.executor = options.executor});
  plan::ForwardRequest request = attention::forward_request(s, how);
  request.dropout = {.p = options.dropout_p, .seed = options.seed};
  plan::ForwardPlan(std::move(request)).run({.q = call.q, .k = call.k, .v = call.v, .out = out});
}

}  // namespace

Tensor scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const SdpaOptions& options) {
  const SdpaCall call = attention::sdpa_call(q, k, v, options);
  const SdpaRules rules = rules_of(call, options);
  const SDPBackend backend = attention::required_backend(problem_of(call), options);
  if (element_count(call.out_shape) == 0 || call.shape.kv_len == 0)
    return Tensor(call.out_shape, q.dtype());  // nothing to see: 0
  if (backend == SDPBackend::kMath)
    return attention::sdpa_math(call.q, call.k, call.v, rules, options).reshape(call.out_shape);
  Tensor out = Tensor::empty(call.out_shape, q.dtype());
  const AttentionShape& s = call.shape;
  run_fused(call, rules, options, out.view().reshape({s.batch, s.q_heads, s.q_len, s.v_head_dim}));
  return out;
}

std::vector<std::string> why_not(SDPBackend backend, const ConstTensorView& q,
                                 const ConstTensorView& k, const ConstTensorView& v,
                                 const SdpaOptions& options) {
  try {
    const SdpaCall call = attention::sdpa_call(q, k, v, options);
    rules_of(call, options);
    return attention::backend_reasons(backend, problem_of(call), options);
  } catch (const Error& error) {  // no backend computes a call that is wrong
    return {error.what()};
  }
}

SDPBackend choose_backend(const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v, const SdpaOptions& options) {
  try {
    const SdpaCall call = attention::sdpa_call(q, k, v, options);
    rules_of(call, options);
    return attention::first_backend(problem_of(call), options);
  } catch (const Error&) {
    return SDPBackend::kError;
  }
}

}  // namespace quire
