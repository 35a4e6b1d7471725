// Problems over jagged batches: queries, keys and values have equally many sequences, and keys and
// values equal lengths. Attention layer.
#include "attention/jagged_batch.h"

#include <algorithm>
#include <utility>

#include "attention/validate.h"
#include "mask/sequence_masks.h"
#include "quire/error.h"
#include "quire/jagged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace attention {

JaggedSequences read_sequences(const char* where, const char* name, const Jagged& jagged) {
  const bool by_token = jagged.order == JaggedOrder::kTokens;
  if (jagged.values.rank() != 3) {
    fail(ErrorKind::value, where, "{}: values must be {}; got {}", name,
         by_token ? "[total, heads, dim]" : "[heads, total, dim]",
         to_string(jagged.values.shape()));
  }
  JaggedSequences sequences{.total = jagged.values.dim(by_token ? 0 : 1),
                            .heads = jagged.values.dim(by_token ? 1 : 0),
                            .dim = jagged.view().shape()[2]};
  sequences.rows = layout::read_rows(where, name, jagged.offsets, jagged.lengths, sequences.total);
  for (const std::int64_t length : sequences.rows.length)
    sequences.longest = std::max(sequences.longest, length);
  return sequences;
}

JaggedBatch read_batch(const char* where, const Jagged& q_view, const Jagged& k_view,
                       const Jagged& v_view) {
  if (!q_view.format.is_plain()) fail(ErrorKind::value, where, "queries cannot be codes");
  JaggedBatch batch{q_view,
                    k_view,
                    v_view,
                    read_sequences(where, "query", q_view),
                    read_sequences(where, "key", k_view),
                    read_sequences(where, "value", v_view)};
  const JaggedSequences &q = batch.q_rows, &k = batch.k_rows, &v = batch.v_rows;
  if (q.count() != k.count() || k.count() != v.count()) {
    fail(ErrorKind::value, where,
         "query, key and value must have the same number of sequences; got {}, {} and {}",
         q.count(), k.count(), v.count());
  }
  for (std::size_t i = 0; i < k.rows.length.size(); ++i) {
    if (k.rows.length[i] == v.rows.length[i]) continue;
    fail(ErrorKind::value, where,
         "key and value must have the same lengths; sequence {} has {} and {}", i, k.rows.length[i],
         v.rows.length[i]);
  }
  return batch;
}

Shape jagged_shape(JaggedOrder order, std::int64_t total, std::int64_t heads, std::int64_t dim) {
  return order == JaggedOrder::kTokens ? Shape{total, heads, dim} : Shape{heads, total, dim};
}

AttentionProblem jagged_problem(JaggedBatch batch, const AttentionOptions& options,
                                const char* function) {
  const JaggedSequences &q = batch.q_rows, &k = batch.k_rows, &v = batch.v_rows;
  check_head_dims(function, q.dim, k.dim);
  if (k.heads != v.heads) {
    fail(ErrorKind::value, function,
         "key and value must have the same number of heads; got {} and {}", k.heads, v.heads);
  }
  AttentionProblem problem{{.batch = q.count(),
                            .q_heads = q.heads,
                            .q_len = q.longest,
                            .head_dim = q.dim,
                            .kv_batch = k.count(),
                            .kv_heads = k.heads,
                            .kv_len = k.longest,
                            .v_head_dim = v.dim,
                            .q_dtype = batch.q.values.dtype(),
                            .k_dtype = batch.k.view().dtype(),
                            .v_dtype = batch.v.view().dtype(),
                            .k_format = batch.k.format,
                            .v_format = batch.v.format},
                           options,
                           function};
  problem.q_shape = batch.q.values.shape();
  problem.k_shape = batch.k.view().shape();
  problem.v_shape = batch.v.view().shape();
  problem.q_order = batch.q.order;
  problem.k_order = batch.k.order;
  problem.v_order = batch.v.order;
  problem.queries = std::make_shared<layout::JaggedQueries>(std::move(batch.q_rows.rows));
  problem.layout = std::make_shared<layout::JaggedLayout>(std::move(batch.k_rows.rows),
                                                          std::move(batch.v_rows.rows.begin));
  return problem;
}

}  // namespace attention

AttentionProblem AttentionProblem::jagged(const Jagged& q, const Jagged& k, const Jagged& v,
                                          const AttentionOptions& options, const char* function) {
  const FloatEnv float_env;
  return attention::jagged_problem(attention::read_batch(function, q, k, v), options, function);
}

JaggedBlockMask create_jagged_block_mask(const MaskMod& mask_mod, std::int64_t heads,
                                         const Jagged& q, const Jagged& kv,
                                         const BlockMaskOptions& options) {
  const FloatEnv float_env;
  constexpr const char* kWhere = "create_jagged_block_mask";
  const attention::JaggedSequences q_rows = attention::read_sequences(kWhere, "query", q);
  const attention::JaggedSequences kv_rows = attention::read_sequences(kWhere, "key", kv);
  if (q_rows.count() != kv_rows.count()) {
    fail(ErrorKind::value, kWhere,
         "query and key must have the same number of sequences; got {} and {}", q_rows.count(),
         kv_rows.count());
  }
  mask::SequenceMasks made = mask::create_sequence_masks(
      kWhere, mask_mod, heads, {.q = q_rows.rows.length, .kv = kv_rows.rows.length}, options);
  return JaggedBlockMask(mask_mod, std::move(made.masks), std::move(made.which));
}

}  // namespace quire
