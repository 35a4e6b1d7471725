// Sizes, scale, rules and layout, one by one. Attention layer.
#include "attention/forward_request.h"

#include <algorithm>
#include <cmath>

#include "attention/validate.h"
#include "formula/simplify/simplify.h"
#include "runtime/executor_of.h"

namespace quire::attention {

std::optional<Formula> score_formula(const std::optional<ScoreMod>& mod, DType compute_type) {
  if (!mod.has_value()) return std::nullopt;
  const Precision precision = compute_type == DType::f64 ? Precision::kF64 : Precision::kF32;
  Formula simple = formula::simplify(mod->formula(), precision);
  if (simple.graph()[simple.root()].op == Op::kScore) return std::nullopt;
  return simple;
}

double scale_of(const std::optional<double>& scale, std::int64_t head_dim, DType compute_type) {
  // Without channels there is nothing to scale.
  const auto channels = static_cast<double>(std::max<std::int64_t>(head_dim, 1));
  const double exact = scale.value_or(1 / std::sqrt(channels));
  return compute_type == DType::f64 ? exact : static_cast<double>(static_cast<float>(exact));
}

plan::ForwardRequest forward_request(const AttentionShape& shape,
                                     const FlexAttentionOptions& options) {
  const DType type = compute_type(shape);
  plan::ForwardRequest request;
  request.batch = shape.batch;
  request.q_heads = shape.q_heads;
  request.kv_heads = shape.kv_heads;
  request.q_len = shape.q_len;
  request.head_dim = shape.head_dim;
  request.v_head_dim = shape.v_head_dim;
  request.q_dtype = shape.q_dtype;
  request.k_dtype = shape.k_dtype;
  request.v_dtype = shape.v_dtype;
  request.scale = scale_of(options.scale, shape.head_dim, type);
  request.score_mod = score_formula(options.score_mod, type);
  request.block_mask = options.block_mask;
  request.q_begin = options.q_begin;
  if (request.q_begin.empty())
    request.q_begin = {options.block_mask ? options.block_mask->q_begin() : 0};
  request.layout = std::make_shared<layout::DenseLayout>(shape.kv_batch, shape.kv_len);
  request.longest_kv = shape.kv_len;
  request.executor = executor_of(options.executor);
  return request;
}

}  // namespace quire::attention
