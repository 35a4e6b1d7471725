// SdpaCall: a call of scaled_dot_product_attention, dense or jagged, checked and converted to the
// axes the kernels take: leading axes merged into one, axes of size 1 broadcast, masks turned into
// rules. Sdpa layer.
#pragma once
#include <optional>
#include <vector>

#include "attention/jagged_batch.h"
#include "quire/scaled_dot_product_attention.h"
#include "sdpa/sdpa_mask.h"

namespace quire::sdpa {

struct SdpaCall {
  /// [B, Hq, L, E], [B, Hkv, S, E], [B, Hkv, S, Ev]; for jagged batches their values, with heads
  /// broadcast.
  ConstTensorView q = {}, k = {}, v = {};
  std::optional<attention::JaggedBatch> jagged = {};
  AttentionShape shape = {};      // of q, k, v; jagged: only dims and dtypes
  Shape batch = {};               // the leading axes of a dense call; their product is B
  Shape out_shape = {};           // dense: [batch..., Hq, L, Ev], without heads if no input has any
  SdpaRules rules = {};           // from attn_mask or is_causal
  std::vector<Tensor> held = {};  // copies of inputs whose leading axes strides cannot merge
  const char* function = nullptr;  // in error messages

  /// No rows, no values or no keys: the result is 0.
  bool is_empty() const;
  /// The shape of lse.
  Shape rows() const;
};

/// Throws Error naming what does not fit: ranks, dtypes, leading axes, heads, dims, lengths, scale,
/// dropout_p, a mask beside is_causal, a mask tensor that does not broadcast.
SdpaCall sdpa_call(const char* function, const ConstTensorView& q, const ConstTensorView& k,
                   const ConstTensorView& v, const SdpaOptions& options);
SdpaCall sdpa_call(const char* function, const Jagged& q, const Jagged& k, const Jagged& v,
                   const SdpaOptions& options);

/// The problem for the fused kernels. The call's sequences are moved into it.
AttentionProblem sdpa_problem(SdpaCall& call, const SdpaOptions& options);

}  // namespace quire::sdpa
