// flex_attention: softmax(mod(q k^T * scale)) v over the keys a block mask leaves visible, in one
// fused pass. Public; attention layer.
//
//   Tensor out = flex_attention(q, k, v, {.score_mod = alibi, .block_mask = mask});
//
// A row's result depends on that row's query, keys, values and mods alone: not on the batch, its
// neighbours, threads, strides, the mask's block size, on how queries are cut into calls or, for
// f32, on the ISA.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

namespace plan {
class ForwardPlan;
}

/// What is wanted beside the output.
struct AuxRequest {
  bool lse = false;  // natural log of the sum of exp(score), per row; -inf if nothing is visible
  bool max_scores = false;  // the largest score of a row, after scale and mod
};

/// [batch, q_heads, q_len], f32 (f64 if computed in f64).
struct AuxOutput {
  std::optional<Tensor> lse = {}, max_scores = {};
};

struct FlexAttentionOptions {
  std::optional<ScoreMod> score_mod = {};
  std::optional<BlockMask> block_mask = {};  // everything is visible if not given
  std::optional<double> scale = {};          // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;                   // q_heads may be a multiple of kv_heads
  /// q_idx of the first query: one number, or one per batch entry. Empty: the mask's q_begin, or 0.
  std::vector<std::int64_t> q_begin = {};
  AuxRequest return_aux = {};
  AuxOutput* aux = nullptr;      // where to put it
  Executor* executor = nullptr;  // default_executor() if null
};

/// q [B, Hq, L, E], k [Bkv, Hkv, S, E], v [Bkv, Hkv, S, Ev]: f32, f64, bf16 or f16 each, any
/// strides. Bkv is B, or 1 with a block mask of batch B or 1. Returns [B, Hq, L, Ev] in q's dtype.
/// Computed in f32, in f64 if one of them is f64. A row with nothing to see gives 0. Thread safe.
/// Throws Error for sizes that do not fit together, before anything is computed, and, naming
/// buffer, index and size, for the first visible element whose mod reads outside a buffer.
QUIRE_API Tensor flex_attention(const ConstTensorView& q, const ConstTensorView& k,
                                const ConstTensorView& v, const FlexAttentionOptions& options = {});

/// Sizes and types of a call, without its memory.
struct AttentionShape {
  std::int64_t batch = 0, q_heads = 0, q_len = 0, head_dim = 0;
  std::int64_t kv_batch = 0, kv_heads = 0, kv_len = 0, v_head_dim = 0;
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;

  /// Of three tensors of rank 4. Throws Error for another rank and for sizes that differ.
  QUIRE_API static AttentionShape of(const ConstTensorView& q, const ConstTensorView& k,
                                     const ConstTensorView& v);
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// What depends on sizes, mods and mask alone, worked out once: use it for every layer and every
/// step of the same sizes. The contents of captured buffers may change between runs; the block mask
/// is as it was when the plan was made. One run of a plan at a time; make one per thread that runs.
///
/// A mask or score mod that finds the keys of sequences in a pool of pages (PagedAttention's, or a
/// formula that counts like them) is recognised: the plan walks the pages that the mask shows and
/// runs the mods on the sequences' own indices.
class QUIRE_API AttentionPlan {
 public:
  /// `aux` of the options is not used, and return_aux not needed.
  AttentionPlan(const AttentionShape& shape, const FlexAttentionOptions& options = {});
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;
  ~AttentionPlan();

  struct Outputs {
    /// [B, Hq, L, Ev], any strides, q's dtype or compute_type(): of half precision the f32 before
    /// rounding, which makes the gradients of buffers more exact (BackwardInputs::out).
    TensorView out;
    std::optional<TensorView> lse = {}, max_scores = {};  // [B, Hq, L], row-major, compute_type()
  };

  /// Allocates nothing, unless the table of a paged mask says something else than when the plan was
  /// made: then it is made again. Strides may differ from run to run. Outputs must not share memory
  /// with inputs or one another. Throws Error for tensors of another shape or dtype, and for
  /// outputs whose addresses and strides show that they share memory.
  void run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           const Outputs& outputs);

  const AttentionShape& shape() const { return shape_; }
  DType compute_type() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;
  /// Whether it walks the pages of sequences, see above.
  bool is_paged() const { return paged_ != nullptr; }

 private:
  struct Paged;
  void make(const FlexAttentionOptions& options);

  AttentionShape shape_;
  std::unique_ptr<Paged> paged_;  // null if the call is what it looks like
  std::unique_ptr<plan::ForwardPlan> plan_;
};

}  // namespace quire
