// Outputs of a call must not share memory with its inputs or with one another: what can be told
// from addresses and strides is refused before anything is written. Attention layer.
#pragma once
#include <span>

#include "attention/aux_outputs.h"
#include "plan/forward_plan.h"
#include "quire/flex_attention_backward.h"
#include "quire/tensor_view.h"

namespace quire::attention {

/// A tensor of a call, under its name in texts of errors.
struct NamedView {
  const char* name;
  ConstTensorView view;
};

/// Throws Error, "[where] ...", for an output in which an element stands for several (a stride of
/// 0) and for one that surely shares memory with an input or another output: they begin at the same
/// element, or one begins or ends in memory that the other fills without gaps. Views that lie
/// between each other's rows, as the parts of a packed tensor do, pass. Allocates nothing.
void validate_disjoint(const char* where, std::span<const NamedView> inputs,
                       std::span<const NamedView> outputs);

/// Of a forward pass, under its usual names, and against the buffers its mods capture.
void validate_disjoint(const char* where, const plan::ForwardTensors& tensors,
                       const StatViews& stats, std::span<const Buffer> buffers);

/// Of a backward pass: gradients against inputs, captured buffers and one another.
void validate_disjoint(const char* where, const BackwardInputs& inputs,
                       const AttentionBackwardPlan::Outputs& outputs,
                       std::span<const Buffer> buffers);

}  // namespace quire::attention
