// AttentionPlan and AttentionBackwardPlan: attention planned once and run for every layer, for
// dense, jagged and paged keys and steps of a KVCache alike. The functions that plan and run in one
// call are in flex_attention.h, attend.h and so on. Public; attention layer.
//
// A row's result depends on that row's query, keys, values and mods alone: not on the batch, its
// neighbours, threads, strides, the mask's block size, pages, on how queries are cut into calls or,
// for f32, on the ISA.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/attention_problem.h"
#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

/// Where a run puts its results.
struct AttentionOutputs {
  /// q's shape with v's dim, any strides, in q's dtype or compute_type(). For half precision the
  /// latter is f32, before rounding: more exact for gradients of buffers.
  TensorView out = {};
  /// out's shape without the last axis, row-major, compute_type().
  std::optional<TensorView> lse = {}, max_scores = {};
  /// See AuxRequest. Shapes as in AuxOutput, row-major, compute_type(). The first run that wants
  /// one of them allocates.
  std::optional<TensorView> key_weights = {}, entropy = {};
  QueryRange key_weights_queries = {};
  /// Only for a problem that keeps states, and then instead of all other outputs: states_shape(),
  /// compute_type(), row-major or a range of rows (axis 2) of a row-major tensor. With `resumes` it
  /// holds the states after all earlier keys, whose number must be a multiple of 1,024.
  std::optional<TensorView> states = {};
  bool resumes = false;
};

/// Everything that depends only on sizes, mods and mask, worked out once: use it for every layer
/// and every step of the same sizes. Captured buffers may change their contents between runs;
/// offsets, page tables and block masks stay as they were when the plan was made. One run of a plan
/// at a time; make one plan per thread that runs. Addresses and strides of the views a plan is made
/// from do not matter.
///
/// With a mask or score mod converted by PagedAttention, the plan walks only the pages that the
/// mask shows and runs the mods on the sequences' own indices.
class QUIRE_API AttentionPlan {
 public:
  using Outputs = AttentionOutputs;

  /// Throws Error for an inconsistent problem. return_aux and aux are ignored.
  explicit AttentionPlan(AttentionProblem problem);
  AttentionPlan(const AttentionShape& shape, const AttentionOptions& options = {});
  AttentionPlan(const Jagged& q, const Jagged& k, const Jagged& v,
                const AttentionOptions& options = {});
  AttentionPlan(const ConstTensorView& q, const PagedKeys& keys,
                const AttentionOptions& options = {});
  AttentionPlan(const Jagged& q, const PagedKeys& keys, const AttentionOptions& options = {});
  /// For a step over a cache; valid until the cache changes (write does not count).
  AttentionPlan(const KVCache& cache, std::span<const NewTokens> step, const AttendQueries& queries,
                const AttentionOptions& options = {});
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;
  ~AttentionPlan();

  /// q, k and v as the problem has them: [B, H, L, D], the values of jagged batches, or
  /// pages of keys. Strides may differ from run to run. Rows of `out` that are holes of a
  /// jagged batch are not written. Allocates nothing, unless the page table of a recognised
  /// mask has changed since the plan was made: then the plan is made again. Throws Error
  /// for tensors of another shape or dtype, and for outputs that overlap inputs or one
  /// another.
  void run(const ConstTensorView& q, const KVView& k, const KVView& v,
           const AttentionOutputs& outputs);
  /// For a step: q [tokens, q_heads, head_dim] over a layer of the cache. Also throws Error for a
  /// cache other than the plan's, a cache that has changed since, and a layer outside it.
  void run(const KVCache& cache, std::int64_t layer, const ConstTensorView& q,
           const AttentionOutputs& outputs);

  const AttentionShape& shape() const;
  DType compute_type() const { return shape().compute_type(); }
  /// Queries of all sequences of a jagged batch or step, together.
  std::int64_t tokens() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;
  /// Whether it walks the sequences' pages instead of the whole pool (see above).
  bool is_paged() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What the forward pass read and returned, and the loss's gradients with respect to its results.
/// Any strides. A missing d_out or d_lse counts as 0; out is read only with d_out.
struct BackwardInputs {
  ConstTensorView q;                          // as for AttentionPlan::run
  KVView k, v;                                // codes are decoded first and have no gradients
  ConstTensorView out = {};                   // any float dtype
  ConstTensorView lse = {};                   // compute type (AuxRequest::lse)
  std::optional<ConstTensorView> d_out = {};  // as out, any float dtype
  std::optional<ConstTensorView> d_lse = {};  // as lse, any float dtype
};

/// Where gradients go: one for each that is wanted, any strides; contents are replaced. They must
/// not overlap the inputs or one another.
struct GradientOutputs {
  std::optional<TensorView> q = {}, k = {}, v = {};  // shape and dtype of the input
  std::span<const TensorView> buffers = {};          // one per buffers(), same shape and dtype
};

struct BufferGradient {
  Buffer buffer;
  Tensor gradient;  // shape and dtype of the buffer, row-major
};

/// Each has the shape and dtype of its input. Gradients are summed over the heads of a group and
/// over batch entries that share keys.
struct AttentionGradients {
  std::optional<Tensor> q = {}, k = {}, v = {};  // the requested ones
  /// In order: the score mod's buffers as in Formula::buffers(), the weight mod's, the mask's
  /// (always 0), the sinks.
  std::vector<BufferGradient> buffers = {};

  /// By name; throws Error if there is none.
  QUIRE_API const Tensor& of(const std::string& buffer) const;
};

struct AttentionBackwardOptions {
  AttentionOptions forward = {};  // as in the forward call; return_aux and aux are ignored
  WantedGradients wanted = {};
};

/// The same for the backward pass: one plan for all layers and steps of the same sizes. One run at
/// a time.
class QUIRE_API AttentionBackwardPlan {
 public:
  using Outputs = GradientOutputs;

  /// Throws Error for an inconsistent problem.
  explicit AttentionBackwardPlan(AttentionProblem problem, const WantedGradients& wanted = {});
  AttentionBackwardPlan(const AttentionShape& shape, const AttentionBackwardOptions& options = {});
  AttentionBackwardPlan(AttentionBackwardPlan&&) noexcept;
  AttentionBackwardPlan& operator=(AttentionBackwardPlan&&) noexcept;
  ~AttentionBackwardPlan();

  /// Strides may differ from run to run. Holes of a jagged batch get gradient 0. Allocates
  /// nothing, except once when the columns of q's gradient or the rows of a buffer's gradient
  /// are not contiguous. Throws Error for other shapes and dtypes, and for overlapping
  /// memory.
  void run(const BackwardInputs& inputs, const GradientOutputs& outputs);

  const AttentionShape& shape() const;
  DType compute_type() const { return shape().compute_type(); }
  /// Those that get a gradient, in the order of AttentionGradients::buffers.
  const std::vector<Buffer>& buffers() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a plan and runs it once. Everything, outputs included, is checked before planning.
QUIRE_API void run_attention(AttentionProblem problem, const ConstTensorView& q, const KVView& k,
                             const KVView& v, const AttentionOutputs& outputs);
/// The same into new memory; what return_aux asks for goes to aux. Holes of a jagged batch are 0.
QUIRE_API Tensor run_attention(AttentionProblem problem, const ConstTensorView& q, const KVView& k,
                               const KVView& v);
/// Computes every gradient in `outputs`; outputs.buffers: one per gradient_buffers(problem).
QUIRE_API void run_attention_backward(AttentionProblem problem, const BackwardInputs& inputs,
                                      const GradientOutputs& outputs);
/// The same, into new memory.
QUIRE_API AttentionGradients run_attention_backward(AttentionProblem problem,
                                                    const BackwardInputs& inputs,
                                                    const WantedGradients& wanted = {});

/// Turns kept states into outputs: states [count][rows of q][elements of a state], in the order of
/// their keys, each row-major; writes out, lse and max_scores of `outputs`. The bits are those of
/// one run over all these keys.
QUIRE_API void finish_states(const AttentionProblem& problem,
                             std::span<const ConstTensorView> states,
                             const AttentionOutputs& outputs);

/// The buffers of a problem that get a gradient, in order: the score mod's as in
/// Formula::buffers(), the weight mod's, the mask's, the sinks.
QUIRE_API std::vector<Buffer> gradient_buffers(const AttentionProblem& problem);

}  // namespace quire
