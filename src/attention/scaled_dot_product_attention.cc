// scaled_dot_product_attention over dense tensors: check, make rules of masks, choose a backend,
// run it. Jagged batches: sdpa_jagged.cc. Attention layer.
#include "quire/scaled_dot_product_attention.h"

#include "attention/sdpa_backend.h"
#include "attention/sdpa_call.h"
#include "attention/sdpa_mask.h"
#include "attention/sdpa_math.h"
#include "attention/sdpa_request.h"
#include "attention/validate.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

using attention::SdpaCall;
using attention::SdpaRules;

attention::BackendProblem problem_of(const SdpaCall& call) {
  return {call.shape.head_dim, call.shape.v_head_dim};
}

void run_fused(const SdpaCall& call, const SdpaRules& rules, const SdpaOptions& options,
               const TensorView& out, void* lse) {
  plan::ForwardPlan(attention::sdpa_request(call, rules, options))
      .run({.q = call.q, .k = call.k, .v = call.v, .out = out, .lse = lse});
}

}  // namespace

Tensor scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const SdpaOptions& options) {
  const FloatEnv float_env;
  const SdpaCall call = attention::sdpa_call(q, k, v, options);
  const SdpaRules rules = attention::sdpa_rules(options, attention::mask_target(call));
  const SDPBackend backend = attention::required_backend(problem_of(call), options);
  const DType type = options.wide_out ? attention::compute_type(call.shape) : q.dtype();
  if (element_count(call.out_shape) == 0 || call.shape.kv_len == 0) {  // nothing to see: 0
    if (options.lse != nullptr) *options.lse = attention::sdpa_lse_of_nothing(call);
    return Tensor(call.out_shape, type);
  }
  const Shape rows = attention::sdpa_rows(call);
  if (backend == SDPBackend::kMath) {
    const attention::MathOutput made = attention::sdpa_math(call.q, call.k, call.v, rules, options);
    if (options.lse != nullptr) *options.lse = made.lse.reshape(rows);
    return made.out.reshape(call.out_shape);
  }
  Tensor out = Tensor::empty(call.out_shape, type), lse;
  const AttentionShape& s = call.shape;
  if (options.lse != nullptr) lse = Tensor::empty(rows, attention::compute_type(s));
  run_fused(call, rules, options, out.view().reshape({s.batch, s.q_heads, s.q_len, s.v_head_dim}),
            options.lse != nullptr ? lse.data() : nullptr);
  if (options.lse != nullptr) *options.lse = lse;
  return out;
}

std::vector<std::string> why_not(SDPBackend backend, const ConstTensorView& q,
                                 const ConstTensorView& k, const ConstTensorView& v,
                                 const SdpaOptions& options) {
  const FloatEnv float_env;
  try {
    const SdpaCall call = attention::sdpa_call(q, k, v, options);
    attention::sdpa_rules(options, attention::mask_target(call));
    return attention::backend_reasons(backend, problem_of(call), options);
  } catch (const Error& error) {  // no backend computes a call that is wrong
    return {error.what()};
  }
}

SDPBackend choose_backend(const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v, const SdpaOptions& options) {
  const FloatEnv float_env;
  try {
    const SdpaCall call = attention::sdpa_call(q, k, v, options);
    attention::sdpa_rules(options, attention::mask_target(call));
    return attention::first_backend(problem_of(call), options);
  } catch (const Error&) {
    return SDPBackend::kError;
  }
}

}  // namespace quire
