// flex_attention's request with dropout. Attention layer.
#include "attention/sdpa_request.h"

#include <algorithm>
#include <limits>

#include "attention/forward_request.h"
#include "attention/validate.h"

namespace quire::attention {

MaskTarget mask_target(const SdpaCall& call) {
  return {call.batch, call.shape.q_heads, call.shape.q_len, call.shape.kv_len};
}

plan::ForwardRequest sdpa_request(const SdpaCall& call, const SdpaRules& rules,
                                  const SdpaOptions& options) {
  const AttentionShape& s = call.shape;
  FlexAttentionOptions how{.score_mod = rules.score_mod,
                           .scale = options.scale,
                           .enable_gqa = true,
                           .executor = options.executor};
  if (rules.mask_mod)
    how.block_mask = create_block_mask(*rules.mask_mod, s.batch, s.q_heads, s.q_len, s.kv_len,
                                       {.executor = options.executor});
  plan::ForwardRequest request = forward_request(s, how);
  request.dropout = {.p = options.dropout_p, .seed = options.seed};
  return request;
}

Shape sdpa_rows(const SdpaCall& call) {
  Shape rows = call.out_shape;
  rows.erase(rows.rank() - 1);
  return rows;
}

Tensor sdpa_lse_of_nothing(const SdpaCall& call) {
  Tensor lse = Tensor::empty(sdpa_rows(call), compute_type(call.shape));
  if (lse.dtype() == DType::f64)
    std::fill_n(lse.data_as<double>(), lse.numel(), -std::numeric_limits<double>::infinity());
  else
    std::fill_n(lse.data_as<float>(), lse.numel(), -std::numeric_limits<float>::infinity());
  return lse;
}

}  // namespace quire::attention
