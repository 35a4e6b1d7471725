// The gradients of attention with mods in plain f64 loops: the specification of the backward pass,
// beside reference/attention.h for the forward pass. Test support.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "quire/buffer.h"
#include "quire/tensor.h"
#include "reference/attention.h"

namespace quire::reference {

/// What is known of the loss.
struct OutputGradients {
  ConstTensorView out;                                // [B, Hq, L, Ev]
  std::optional<ConstTensorView> lse = std::nullopt;  // [B, Hq, L]
  bool lse_with_sinks = false;                        // of which lse
};

struct BufferGradient {
  Buffer buffer;
  Tensor gradient;  // of the buffer's shape
};

/// All f64, each of the shape of what it is the gradient of: groups of heads, and batches that
/// share keys, are summed.
struct AttentionGradients {
  Tensor q, k, v;
  Tensor sinks;  // [Hq], or [0] without sinks
  // Those captured with wants_gradient: the score mod's in the order of its formula, then the
  // mask's (all 0).
  std::vector<BufferGradient> buffers;

  /// By name; throws Error if there is none.
  const Tensor& of(const std::string& buffer) const;
};

/// The gradients of attention(). Hidden elements and rows without keys contribute exactly nothing.
/// Throws as attention().
AttentionGradients attention_backward(const AttentionInputs& inputs,
                                      const AttentionOptions& options, const OutputGradients& d);

}  // namespace quire::reference
