// From the options of an attention call to the request a plan is made of. Checks nothing: callers
// have validated. Attention layer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "plan/forward_plan.h"
#include "quire/flex_attention.h"

namespace quire::attention {

/// Simplified; nothing if there is no mod or it gives the score back.
std::optional<Formula> score_formula(const std::optional<ScoreMod>& mod, DType compute_type);

/// 1 / sqrt(head_dim) if not given, 1 without channels; rounded to the compute type.
double scale_of(const std::optional<double>& scale, std::int64_t head_dim, DType compute_type);

/// Of a dense call.
plan::ForwardRequest forward_request(const AttentionShape& shape,
                                     const FlexAttentionOptions& options);

}  // namespace quire::attention
