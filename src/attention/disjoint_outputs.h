// Rejects outputs that share memory with inputs or with one another, as far as addresses and
// strides show it, before anything is written. Attention layer.
#pragma once
#include <span>

#include "plan/forward_plan.h"
#include "quire/attention.h"

namespace quire::attention {

// Throws Error "[where] ..." for an output of which several elements share memory (a stride of 0),
// and for one that surely shares memory with an input or another output (tensor/overlap.h).
// Allocates nothing.

/// For a forward pass: its outputs, under their usual names, against its inputs and the buffers its
/// mods capture.
void validate_disjoint(const char* where, const plan::ForwardTensors& tensors,
                       const AttentionOutputs& to, std::span<const Buffer> buffers);

/// For a backward pass: gradients against inputs, captured buffers and one another.
void validate_disjoint(const char* where, const BackwardInputs& inputs,
                       const GradientOutputs& outputs, std::span<const Buffer> buffers);

}  // namespace quire::attention
