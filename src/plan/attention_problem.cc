// AttentionProblem: the problem of dense tensors, and the values that are derived from any problem.
// Plan layer.
#include "quire/attention_problem.h"

#include <algorithm>

#include "kernels/row_states.h"
#include "layout/key_layout.h"
#include "layout/query_layout.h"
#include "plan/finish_states.h"

namespace quire {

AttentionProblem AttentionProblem::dense(const AttentionShape& shape,
                                         const AttentionOptions& options, const char* function) {
  AttentionProblem problem{shape, options, function};
  problem.q_shape = {shape.batch, shape.q_heads, shape.q_len, shape.head_dim};
  problem.k_shape = {shape.kv_batch, shape.kv_heads, shape.kv_len, shape.head_dim};
  problem.v_shape = {shape.kv_batch, shape.kv_heads, shape.kv_len, shape.v_head_dim};
  return problem;
}

const MaskMod* AttentionProblem::rule() const {
  if (block_mask.has_value()) return &block_mask.mask_mod();
  if (mask_mod.has_value()) return &*mask_mod;
  return visible_rule.has_value() ? &*visible_rule : nullptr;
}

std::int64_t AttentionProblem::queries_of(std::int64_t sequence) const {
  return queries == nullptr ? q_len : queries->length(sequence);
}

std::int64_t AttentionProblem::keys_of(std::int64_t sequence) const {
  return layout == nullptr ? kv_len : layout->length(sequence);
}

std::int64_t AttentionProblem::b_end() const {
  return mod_b.empty() ? batch : *std::ranges::max_element(mod_b) + 1;
}

Shape AttentionProblem::out_shape() const {
  Shape shape = q_shape;
  shape[shape.rank() - 1] = v_head_dim;
  return shape;
}

Shape AttentionProblem::key_weights_shape() const {
  if (k_shape.rank() != 3) return {batch, q_heads, kv_len};
  Shape shape = k_shape;
  shape.erase(2);
  shape[k_order == JaggedOrder::kTokens ? 1 : 0] = q_heads;
  return shape;
}

Shape AttentionProblem::states_shape() const {
  Shape shape = q_shape;
  const std::int64_t size = kernels::row_state_size(static_cast<int>(v_head_dim));
  if (states != KeptStates::kSplits) {
    shape[shape.rank() - 1] = size;
    return shape;
  }
  shape[shape.rank() - 1] = plan::state_count(*this);
  shape.push_back(size);
  return shape;
}

Shape AttentionProblem::stats_shape() const {
  Shape shape = q_shape;
  shape.erase(shape.rank() - 1);
  return shape;
}

}  // namespace quire
