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
  /// As q with v's dim, any strides, q's dtype or compute_type(): of half precision the f32 before
  /// rounding, which makes the gradients of buffers more exact (BackwardInputs::out).
  TensorView out = {};
  /// As out without its last axis, row-major, compute_type().
  std::optional<TensorView> lse = {}, max_scores = {};
  /// See AuxRequest. As AuxOutput's, row-major, compute_type(). The first run that wants one of
  /// them allocates.
  std::optional<TensorView> key_weights = {}, entropy = {};
  QueryRange key_weights_queries = {};
  /// Of a problem that keeps states, instead of all others: states_shape(), row-major or rows (axis
  /// 2) of a larger tensor that is, compute_type(). `resumes`: it holds the states after the keys
  /// before these, of which there was a multiple of 1,024.
  std::optional<TensorView> states = {};
  bool resumes = false;
};

/// What depends on sizes, mods and mask alone, worked out once: use it for every layer and every
/// step of the same sizes. The contents of captured buffers may change between runs; offsets, page
/// tables and block masks are as they were when the plan was made. One run of a plan at a time;
/// make one per thread that runs. Addresses and strides of the views a plan is made from do not
/// matter.
///
/// With a mask or score mod that PagedAttention converted, the plan walks the pages that the mask
/// shows and runs the mods on the sequences' own indices.
class QUIRE_API AttentionPlan {
 public:
  using Outputs = AttentionOutputs;

  /// Throws Error if anything does not fit together. return_aux and aux are not used.
  explicit AttentionPlan(AttentionProblem problem);
  AttentionPlan(const AttentionShape& shape, const AttentionOptions& options = {});
  AttentionPlan(const Jagged& q, const Jagged& k, const Jagged& v,
                const AttentionOptions& options = {});
  AttentionPlan(const ConstTensorView& q, const PagedKeys& keys,
                const AttentionOptions& options = {});
  AttentionPlan(const Jagged& q, const PagedKeys& keys, const AttentionOptions& options = {});
  /// Of a step over a cache; valid until the cache changes (write does not count).
  AttentionPlan(const KVCache& cache, std::span<const NewTokens> step, const AttendQueries& queries,
                const AttentionOptions& options = {});
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;
  ~AttentionPlan();

  /// q, k and v as the problem has them: [B, H, L, D]; values of jagged batches; pages of keys.
  /// Strides may differ from run to run. Rows of `out` that are holes of a jagged batch are not
  /// written. Allocates nothing, unless the table of a recognised mask says something else than
  /// when the plan was made: then it is made again. Throws Error for tensors of another shape or
  /// dtype, and for outputs whose addresses and strides show that they share memory with inputs or
  /// one another.
  void run(const ConstTensorView& q, const KVView& k, const KVView& v,
           const AttentionOutputs& outputs);
  /// Of a step: q [tokens, q_heads, head_dim] over a layer of the cache. Also throws Error for
  /// another cache than the plan's, one that has changed since, and a layer outside it.
  void run(const KVCache& cache, std::int64_t layer, const ConstTensorView& q,
           const AttentionOutputs& outputs);

  const AttentionShape& shape() const;
  DType compute_type() const { return shape().compute_type(); }
  /// Queries of all sequences of a jagged batch or step.
  std::int64_t tokens() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;
  /// Whether it walks the pages of sequences, see above.
  bool is_paged() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What the forward pass read and returned, and the gradient of the loss by it. Any strides. d_out
/// and d_lse that are not given are 0; out is read only with d_out.
struct BackwardInputs {
  ConstTensorView q;                          // as of AttentionPlan::run
  KVView k, v;                                // codes are decoded first, and have no gradients
  ConstTensorView out = {};                   // any float dtype
  ConstTensorView lse = {};                   // compute type (AuxRequest::lse)
  std::optional<ConstTensorView> d_out = {};  // as out, any float dtype
  std::optional<ConstTensorView> d_lse = {};  // as lse, any float dtype
};

/// Where gradients go: one for each that is wanted, any strides; contents are replaced. They must
/// not overlap the inputs or one another.
struct GradientOutputs {
  std::optional<TensorView> q = {}, k = {}, v = {};  // shapes and dtypes of the inputs
  std::span<const TensorView> buffers = {};          // as buffers(), of their shapes and dtypes
};

struct BufferGradient {
  Buffer buffer;
  Tensor gradient;  // of the buffer's shape and dtype, row-major
};

/// Of the shapes and dtypes of what they are gradients of; sums over the heads of a group and over
/// batch entries that share keys.
struct AttentionGradients {
  std::optional<Tensor> q = {}, k = {}, v = {};  // those that were wanted
  /// The score mod's in the order of Formula::buffers(), then the weight mod's, then the mask's,
  /// which are 0, then the sinks.
  std::vector<BufferGradient> buffers = {};

  /// By name; throws Error if there is none.
  QUIRE_API const Tensor& of(const std::string& buffer) const;
};

struct AttentionBackwardOptions {
  AttentionOptions forward = {};  // as the forward's; return_aux and aux are not used
  WantedGradients wanted = {};
};

/// The same for the backward pass: one for all layers and steps of the same sizes. One run of a
/// plan at a time.
class QUIRE_API AttentionBackwardPlan {
 public:
  using Outputs = GradientOutputs;

  /// Throws Error if anything does not fit together.
  explicit AttentionBackwardPlan(AttentionProblem problem, const WantedGradients& wanted = {});
  AttentionBackwardPlan(const AttentionShape& shape, const AttentionBackwardOptions& options = {});
  AttentionBackwardPlan(AttentionBackwardPlan&&) noexcept;
  AttentionBackwardPlan& operator=(AttentionBackwardPlan&&) noexcept;
  ~AttentionBackwardPlan();

  /// Strides may differ from run to run. Gradients of holes of a jagged batch become 0. Allocates
  /// nothing, but for the first outputs whose columns (of q) or rows (of a buffer) do not lie
  /// together. Throws Error for other shapes and dtypes, and where addresses and strides show that
  /// memory is shared.
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

/// A plan made and run once. Everything, outputs included, is checked before anything is planned.
QUIRE_API void run_attention(AttentionProblem problem, const ConstTensorView& q, const KVView& k,
                             const KVView& v, const AttentionOutputs& outputs);
/// The same, into new memory, with what return_aux asks for in aux. Holes of a jagged batch are 0.
QUIRE_API Tensor run_attention(AttentionProblem problem, const ConstTensorView& q, const KVView& k,
                               const KVView& v);
/// Gradients for all that outputs name; outputs.buffers: one for each of gradient_buffers(problem).
QUIRE_API void run_attention_backward(AttentionProblem problem, const BackwardInputs& inputs,
                                      const GradientOutputs& outputs);
/// The same, into new memory.
QUIRE_API AttentionGradients run_attention_backward(AttentionProblem problem,
                                                    const BackwardInputs& inputs,
                                                    const WantedGradients& wanted = {});

/// The outputs of rows from what runs have kept: states [count][rows of q][elements of a state], in
/// the order of their keys, each row-major; out, lse and max_scores of `outputs`. The bits are
/// those of one run over all these keys.
QUIRE_API void finish_states(const AttentionProblem& problem,
                             std::span<const ConstTensorView> states,
                             const AttentionOutputs& outputs);

/// The buffers of a problem that get a gradient: the score mod's in the order of
/// Formula::buffers(), then the weight mod's, the mask's and the sinks.
QUIRE_API std::vector<Buffer> gradient_buffers(const AttentionProblem& problem);

}  // namespace quire
