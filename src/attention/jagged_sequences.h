// The sequences of a jagged batch: offsets and lengths read, checked and turned into rows; and its
// values as a tensor of four axes. Attention layer.
#pragma once
#include <cstdint>

#include "layout/jagged_layout.h"
#include "quire/jagged.h"

namespace quire::attention {

struct JaggedSequences {
  layout::JaggedRows rows;
  std::int64_t total = 0, heads = 0, dim = 0;  // of the values
  std::int64_t longest = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.begin.size()); }
};

/// Throws Error "[where] name: ...", naming the sequence, for offsets that fall, are negative or
/// end beyond the values, lengths that are negative or longer than their slot, another dtype (kind
/// type), rank or size.
JaggedSequences read_sequences(const char* where, const char* name, const Jagged& jagged);

/// Throws Error for numbers of sequences that differ, and keys and values of different lengths.
void check_lengths(const char* where, const JaggedSequences& q, const JaggedSequences& k,
                   const JaggedSequences& v);

/// Values as [1, heads, total, dim], whichever axis comes first.
template <class View>
View four_axes(const View& values, JaggedOrder order) {
  return (order == JaggedOrder::kTokens ? values.transpose(0, 1) : values).unsqueeze(0);
}

/// The shape of values: [total, heads, dim] or [heads, total, dim]; `dim` < 0: without that axis.
Shape jagged_shape(JaggedOrder order, std::int64_t total, std::int64_t heads, std::int64_t dim);

}  // namespace quire::attention
