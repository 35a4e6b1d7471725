// The tensors of a backward call beside q, k and v: checked, and brought to the axes a plan takes.
// Texts of errors begin with [flex_attention_backward] or [where]. Attention layer.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "plan/backward_plan.h"
#include "quire/flex_attention_backward.h"

namespace quire::attention {

/// What there is beside q, k and v; out and lse as the forward gave them.
struct LossInputs {
  ConstTensorView out, lse;
  std::optional<ConstTensorView> d_out = {}, d_lse = {};
};

/// rows: the shape of lse; wanted_out: of out. Throws Error "[where] ..." naming what does not fit.
void validate_loss(const char* where, const LossInputs& inputs, const Shape& rows,
                   const Shape& wanted_out);

/// A gradient against what it is the gradient of. Throws Error for one that is missing or too much.
void validate_gradient(const char* name, bool is_wanted, const std::optional<TensorView>& given,
                       const ConstTensorView& of);

/// Gradients of buffers against the buffers.
void validate_buffers(const std::vector<Buffer>& buffers, std::span<const TensorView> given);

/// Allocates the gradients of buffers and returns views of them.
std::vector<TensorView> make_buffers(const std::vector<Buffer>& buffers, AttentionGradients& made);

}  // namespace quire::attention
