// Sequences to layouts, rules to masks. Attention layer.
#include "attention/jagged_request.h"

#include <memory>
#include <utility>
#include <vector>

#include "attention/forward_request.h"
#include "attention/validate.h"
#include "mask/sequence_masks.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

struct Sequences {
  JaggedSequences q, k, v;
};

void check_together(const char* where, const Sequences& all) {
  const auto& [q, k, v] = all;
  check_lengths(where, q, k, v);
  if (q.dim != k.dim)
    fail(ErrorKind::value, where, "query and key must have the same head dim; got {} and {}", q.dim,
         k.dim);
  if (k.heads != v.heads)
    fail(ErrorKind::value, where, "key and value must have the same number of heads; got {} and {}",
         k.heads, v.heads);
}

void check_mask(const char* where, const JaggedBlockMask& mask, const Sequences& all) {
  if (mask.sequences() != all.q.count()) {
    fail(ErrorKind::value, where, "the block mask was made for {} sequences; got {}",
         mask.sequences(), all.q.count());
  }
  for (std::int64_t i = 0; i < mask.sequences(); ++i) {
    const BlockMask& one = mask[i];
    const auto [q_len, kv_len] = one.seq_lengths();
    const auto at = static_cast<std::size_t>(i);
    if (q_len != all.q.rows.length[at] || kv_len != all.k.rows.length[at]) {
      fail(ErrorKind::value, where,
           "the block mask of sequence {} was made for {} queries and {} keys; got {} and {}", i,
           q_len, kv_len, all.q.rows.length[at], all.k.rows.length[at]);
    }
    if (one.heads() != all.q.heads && one.heads() != 1) {
      fail(ErrorKind::value, where, "the block mask of sequence {} must have {} heads or 1; got {}",
           i, all.q.heads, one.heads());
    }
  }
}

plan::MaskSource mask_source(const char* where, const JaggedAttentionOptions& options,
                             const Sequences& all) {
  if (options.block_mask.has_value()) {
    if (options.mask_mod.has_value())
      fail(ErrorKind::value, where, "give mask_mod or block_mask, not both");
    check_mask(where, *options.block_mask, all);
    return {options.block_mask->mask_mod(), options.block_mask->masks(),
            options.block_mask->which()};
  }
  if (!options.mask_mod.has_value()) return {};
  mask::SequenceMasks made = mask::create_sequence_masks(
      where, *options.mask_mod, all.q.heads, {.q = all.q.rows.length, .kv = all.k.rows.length},
      {.executor = options.executor});
  return {*options.mask_mod, std::move(made.masks), std::move(made.which)};
}

}  // namespace

plan::ForwardRequest jagged_request(const char* where, const Jagged& q, const Jagged& k,
                                    const Jagged& v, const JaggedAttentionOptions& options) {
  Sequences all{read_sequences(where, "query", q), read_sequences(where, "key", k),
                read_sequences(where, "value", v)};
  check_together(where, all);
  const AttentionShape shape{.batch = all.q.count(),
                             .q_heads = all.q.heads,
                             .q_len = all.q.longest,
                             .head_dim = all.q.dim,
                             .kv_batch = all.k.count(),
                             .kv_heads = all.k.heads,
                             .kv_len = all.k.longest,
                             .v_head_dim = all.v.dim,
                             .q_dtype = q.values.dtype(),
                             .k_dtype = k.values.dtype(),
                             .v_dtype = v.values.dtype()};
  const FlexAttentionOptions dense{.score_mod = options.score_mod,
                                   .scale = options.scale,
                                   .enable_gqa = options.enable_gqa,
                                   .executor = options.executor};
  validate(where, shape, dense);
  plan::ForwardRequest request = forward_request(shape, dense);
  request.block_mask = mask_source(where, options, all);
  request.queries = std::make_shared<layout::JaggedQueries>(std::move(all.q.rows));
  request.layout =
      std::make_shared<layout::JaggedLayout>(std::move(all.k.rows), std::move(all.v.rows.begin));
  return request;
}

plan::ForwardTensors jagged_tensors(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const TensorView& out,
                                    const JaggedOrders& orders) {
  return {.q = four_axes(q, orders.q),
          .k = four_axes(k, orders.k),
          .v = four_axes(v, orders.v),
          .out = four_axes(out, orders.q),
          .stats_by_row = orders.q == JaggedOrder::kTokens};
}

JaggedOutputs run_jagged(plan::ForwardPlan& plan, const Jagged& q, const Jagged& k, const Jagged& v,
                         const AuxRequest& aux) {
  const bool by_token = q.order == JaggedOrder::kTokens;
  const std::int64_t total = q.values.dim(by_token ? 0 : 1);
  const std::int64_t heads = q.values.dim(by_token ? 1 : 0);
  // Holes are not written by the run. Where there are none, nothing need be cleared.
  const auto make = [&](std::int64_t dim, DType dtype) {
    const Shape shape = jagged_shape(q.order, total, heads, dim);
    return plan.queries() == total ? Tensor::empty(shape, dtype) : Tensor(shape, dtype);
  };
  JaggedOutputs outputs{.out = make(v.values.dim(2), q.values.dtype())};
  plan::ForwardTensors tensors =
      jagged_tensors(q.values, k.values, v.values, outputs.out.view(), {q.order, k.order, v.order});
  if (aux.lse) tensors.lse = outputs.aux.lse.emplace(make(-1, plan.compute_type())).data();
  if (aux.max_scores)
    tensors.max_scores = outputs.aux.max_scores.emplace(make(-1, plan.compute_type())).data();
  plan.run(tensors);
  return outputs;
}

}  // namespace quire::attention
