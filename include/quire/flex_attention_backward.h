// flex_attention_backward: the gradients of flex_attention, in one fused pass that recomputes the
// scores tile by tile from lse. Dense and jagged. Public; attention layer.
//
//   AuxOutput aux;
//   Tensor out = flex_attention(q, k, v, {.block_mask = mask, .return_aux = {.lse = true}, .aux =
//   &aux});
//   AttentionGradients d = flex_attention_backward(
//       {.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out},
//       {.forward = {.block_mask = mask}});
//
// The bits of a gradient do not depend on threads, executor, strides or the mask's block size, nor,
// for f32, on the ISA; those of a batch entry not on the rest of the batch.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/jagged.h"
#include "quire/tensor.h"

namespace quire {

namespace plan {
class BackwardPlan;
}

/// Which gradients are computed. What is not wanted costs nothing.
struct WantedGradients {
  bool q = true;
  bool k = true;
  bool v = true;
  bool buffers = true;  // of the captured buffers that were made with wants_gradient
};

/// What the forward pass read and gave, and what is known of the loss. Any strides. d_out and d_lse
/// not given are 0; out is read only with d_out.
struct BackwardInputs {
  ConstTensorView q, k, v;                    // as of flex_attention
  ConstTensorView out = {};                   // [B, Hq, L, Ev], any float dtype
  ConstTensorView lse = {};                   // [B, Hq, L], compute type (AuxRequest::lse)
  std::optional<ConstTensorView> d_out = {};  // [B, Hq, L, Ev], any float dtype
  std::optional<ConstTensorView> d_lse = {};  // [B, Hq, L], any float dtype
};

struct BufferGradient {
  Buffer buffer;
  Tensor gradient;  // of the buffer's shape and dtype, row-major
};

/// Of the shapes and dtypes of what they are gradients of; sums over the heads of a group and over
/// batch entries that share keys.
struct AttentionGradients {
  std::optional<Tensor> q = {}, k = {}, v = {};  // those that were wanted
  /// The score mod's in the order of Formula::buffers(), then the mask's, which are 0.
  std::vector<BufferGradient> buffers = {};

  /// By name; throws Error if there is none.
  QUIRE_API const Tensor& of(const std::string& buffer) const;
};

struct FlexAttentionBackwardOptions {
  FlexAttentionOptions forward = {};  // as the forward's; return_aux and aux are not used
  WantedGradients wanted = {};
};

/// Computed in f32, in f64 if one of q, k, v is f64. Rows that see nothing, and elements the mask
/// hides, add exactly nothing; keys nobody sees are not read and have gradient 0. Thread
/// safe. Throws Error for what does not fit together, before anything is computed, and,
/// as the forward does, for the first visible element whose mod reads outside a buffer.
QUIRE_API AttentionGradients flex_attention_backward(
    const BackwardInputs& inputs, const FlexAttentionBackwardOptions& options = {});

/// What depends on sizes, mods and mask alone, worked out once: one for all layers and steps of the
/// same sizes. One run of a plan at a time.
class QUIRE_API AttentionBackwardPlan {
 public:
  AttentionBackwardPlan(const AttentionShape& shape,
                        const FlexAttentionBackwardOptions& options = {});
  AttentionBackwardPlan(AttentionBackwardPlan&&) noexcept;
  AttentionBackwardPlan& operator=(AttentionBackwardPlan&&) noexcept;
  ~AttentionBackwardPlan();

  /// One for each that is wanted, any strides; contents are replaced. They must not overlap the
  /// inputs or one another.
  struct Outputs {
    std::optional<TensorView> q = {}, k = {}, v = {};  // shapes and dtypes of the inputs
    std::span<const TensorView> buffers = {};          // as buffers(), of their shapes and dtypes
  };

  /// Strides may differ from run to run. Allocates nothing, but for the first outputs whose columns
  /// (of q) or rows (of a buffer) do not lie together. Throws Error for other shapes and dtypes,
  /// and where addresses and strides show that memory is shared.
  void run(const BackwardInputs& inputs, const Outputs& outputs);

  const AttentionShape& shape() const { return shape_; }
  DType compute_type() const;
  /// Those that get a gradient, in the order of AttentionGradients::buffers.
  const std::vector<Buffer>& buffers() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;

 private:
  AttentionShape shape_;
  std::unique_ptr<plan::BackwardPlan> plan_;
};

/// Of jagged batches. out, d_out, lse and d_lse are in q's order, as the forward gives them.
struct JaggedBackwardInputs {
  Jagged q, k, v;
  ConstTensorView out = {};                   // values like q's, with v's dim
  ConstTensorView lse = {};                   // [total, heads], or [heads, total]
  std::optional<ConstTensorView> d_out = {};  // as out
  std::optional<ConstTensorView> d_lse = {};  // as lse
};

struct JaggedBackwardOptions {
  JaggedAttentionOptions forward = {};  // as the forward's; return_aux and aux are not used
  WantedGradients wanted = {};
};

/// Gradients of the values of q, k and v, each in its own order; holes are 0. A sequence's
/// gradients have the bits of flex_attention_backward over that sequence alone. Throws Error as
/// flex_attention over jagged batches and as above.
QUIRE_API AttentionGradients flex_attention_backward(const JaggedBackwardInputs& inputs,
                                                     const JaggedBackwardOptions& options = {});

}  // namespace quire
