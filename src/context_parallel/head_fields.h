// Which heads a rank computes when heads are exchanged, and what is sent per token for them: sizes,
// without memory. Context_parallel layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/attention_problem.h"
#include "quire/dtype.h"

namespace quire::context_parallel {

/// Key heads that a rank computes, as evenly as possible: 5 heads on 2 ranks are 0..1 and 2..4.
struct HeadRange {
  std::int64_t begin = 0, end = 0;

  static HeadRange of(int rank, int ranks, std::int64_t kv_heads) {
    return {kv_heads * rank / ranks, kv_heads * (rank + 1) / ranks};
  }
  std::int64_t size() const { return end - begin; }
};

/// What a tensor contributes to a message per token, for one key head.
struct TokenField {
  std::int64_t batch = 1, heads = 1, dim = 1;
  DType dtype = DType::f32;

  /// Parts begin at multiples of 8 bytes.
  std::size_t bytes(std::int64_t tokens) const {
    const std::int64_t exact = batch * heads * dim * tokens * std::int64_t(dtype_size(dtype));
    return static_cast<std::size_t>((exact + 7) / 8 * 8);
  }
};

/// What of each token is sent to the rank that computes a head, and what is sent back.
struct HeadFields {
  std::vector<TokenField> there, back;
};
HeadFields forward_fields(const AttentionShape& shape);
/// With outputs and their gradients in q's dtype, and no gradient of lse.
HeadFields backward_fields(const AttentionShape& shape);

}  // namespace quire::context_parallel
