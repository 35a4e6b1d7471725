// One call of the reference, rounded to the output's type. Attention layer.
#include "attention/sdpa_math.h"

#include "reference/attention.h"

namespace quire::attention {

MathOutput sdpa_math(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const SdpaRules& rules, const SdpaOptions& options, std::int64_t b_begin) {
  const reference::AttentionOptions how{.score_mod = rules.score_mod,
                                        .mask_mod = rules.mask_mod,
                                        .scale = options.scale,
                                        .b_begin = b_begin,
                                        .dropout = {options.dropout_p, options.seed}};
  const reference::AttentionOutput exact = reference::attention({q, k, v}, how);
  const DType numbers = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return {exact.out.to(options.wide_out ? numbers : q.dtype()), exact.lse.to(numbers)};
}

}  // namespace quire::attention
