// The sequences of a jagged batch: offsets and lengths read once, checked and turned into rows.
// Attention layer.
#pragma once
#include <cstdint>

#include "layout/jagged_layout.h"
#include "quant/coded_view.h"
#include "quire/attention_problem.h"

namespace quire::attention {

struct JaggedSequences {
  layout::JaggedRows rows = {};
  std::int64_t total = 0, heads = 0, dim = 0;  // of the values
  std::int64_t longest = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.begin.size()); }
};

/// Throws Error "[where] name: ..." for values of another rank and as layout::read_rows does.
JaggedSequences read_sequences(const char* where, const char* name, const Jagged& jagged);

/// The query, key and value of a call, with their sequences.
struct JaggedBatch {
  Jagged q, k, v;
  JaggedSequences q_rows, k_rows, v_rows;
};

/// Throws Error also if the numbers of sequences differ, or keys and values differ in length.
JaggedBatch read_batch(const char* where, const Jagged& q, const Jagged& k, const Jagged& v);

/// AttentionProblem::jagged of a batch that was read before.
AttentionProblem jagged_problem(JaggedBatch batch, const AttentionOptions& options,
                                const char* function);

/// The shape of values: [total, heads, dim] or [heads, total, dim].
Shape jagged_shape(JaggedOrder order, std::int64_t total, std::int64_t heads, std::int64_t dim);

/// Which axes of keys or values count heads and tokens.
inline quant::CodedAxes coded_axes(const KVView& view, JaggedOrder order) {
  if (view.data.rank() != 3) return {};
  const bool by_token = order == JaggedOrder::kTokens;
  return {.batch = -1, .head = by_token ? 1 : 0, .token = by_token ? 0 : 1};
}

/// Tensors of rank 3 ([total, heads, dim], or with heads first) as [1, heads, total, dim]; others
/// as they are.
template <class View>
View four_axes(const View& view, JaggedOrder order) {
  if (view.rank() != 3) return view;
  return (order == JaggedOrder::kTokens ? view.transpose(0, 1) : view).unsqueeze(0);
}

}  // namespace quire::attention
