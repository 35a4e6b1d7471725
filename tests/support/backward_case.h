// Backward calls for tests: the forward's result, random gradients of it, ours, the reference's and
// a plain f32 backward whose error against f64 says how large ours may be. Tests only.
#pragma once
#include <cstdint>
#include <optional>

#include "quire/flex_attention_backward.h"
#include "tests/support/attention_case.h"

namespace quire::testing {

/// What a backward call reads, in the case's dtypes and order.
struct BackwardTensors {
  AttentionTensors forward;
  Tensor out, lse;  // ours
  Tensor d_out_memory, d_lse_memory;
  std::optional<ConstTensorView> d_out, d_lse;

  /// Gradients of both, or of one.
  BackwardTensors(const AttentionCase& shape, std::uint64_t seed, bool with_d_out = true,
                  bool with_d_lse = true);
  BackwardInputs inputs() const;
};

/// As f64, whatever they were computed in.
struct GradientValues {
  Tensor q, k, v;
};

GradientValues ours(const AttentionCase& shape, const BackwardTensors& tensors);
GradientValues in_f64(const AttentionGradients& gradients);
/// reference::attention_backward.
GradientValues exact(const AttentionCase& shape, const BackwardTensors& tensors);
/// Of a captured buffer.
Tensor exact_buffer(const AttentionCase& shape, const BackwardTensors& tensors,
                    const std::string& buffer);
/// In float, sums in order, std::exp; delta from the forward's out. Without score mods.
GradientValues naive(const AttentionCase& shape, const BackwardTensors& tensors);

/// The largest magnitude.
double largest(const Tensor& values);

}  // namespace quire::testing
