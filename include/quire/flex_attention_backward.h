// flex_attention_backward: the gradients of flex_attention, in one fused pass that recomputes the
// scores tile by tile from lse. Dense, jagged and paged. Public; attention layer.
//
//   AuxOutput aux;
//   Tensor out = flex_attention(
//       q, k, v, {.block_mask = mask, .return_aux = {.lse = true}, .aux = &aux});
//   AttentionGradients d = flex_attention_backward(
//       {.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out},
//       {.forward = {.block_mask = mask}});
//
// The bits of a gradient do not depend on threads, executor, strides or the mask's block size, nor,
// for f32, on the ISA; those of a batch entry do not depend on the rest of the batch.
#pragma once
#include <concepts>
#include <optional>

#include "quire/attention.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/jagged.h"

namespace quire {

using FlexAttentionBackwardOptions = AttentionBackwardOptions;
using JaggedBackwardOptions = AttentionBackwardOptions;

/// Computed in f32, or in f64 if any of q, k, v is f64. Rows that see nothing, and elements the
/// mask hides, contribute exactly 0; keys that no query sees are not read and have gradient 0.
/// Dropout is replayed from its seed. Thread safe. Throws Error for inconsistent inputs, before
/// anything is computed, and, as the forward pass does, for the first visible element whose mod
/// reads outside a buffer.
QUIRE_API AttentionGradients flex_attention_backward(const BackwardInputs& inputs,
                                                     const AttentionBackwardOptions& options = {});

/// For jagged batches. out, d_out, lse and d_lse are in q's order, as in the forward pass.
struct JaggedBackwardInputs {
  Jagged q, k, v;
  ConstTensorView out = {};                   // values like q's, with v's dim
  ConstTensorView lse = {};                   // [total, heads], or [heads, total]
  std::optional<ConstTensorView> d_out = {};  // as out
  std::optional<ConstTensorView> d_lse = {};  // as lse
};

namespace detail {
QUIRE_API AttentionGradients jagged_backward(const JaggedBackwardInputs& inputs,
                                             const AttentionBackwardOptions& options);
}  // namespace detail

/// Gradients of the values of q, k and v, each in its own order; holes are 0. A sequence's
/// gradients have the bits of flex_attention_backward over that sequence alone. Throws Error as
/// flex_attention over jagged batches and as above. (A template, so that overload resolution
/// prefers the dense function for `{.q = tensor, ...}`, which could mean either.)
template <class Inputs = JaggedBackwardInputs>
  requires std::same_as<Inputs, JaggedBackwardInputs>
AttentionGradients flex_attention_backward(const Inputs& inputs,
                                           const AttentionBackwardOptions& options = {}) {
  return detail::jagged_backward(inputs, options);
}

/// For paged keys and values.
struct PagedBackwardInputs {
  ConstTensorView q;                          // [n, q_heads, q_len, dim]
  PagedKeys keys;                             // as in the forward call
  ConstTensorView out = {};                   // [n, q_heads, q_len, v_dim], any float dtype
  ConstTensorView lse = {};                   // [n, q_heads, q_len], compute type
  std::optional<ConstTensorView> d_out = {};  // as out
  std::optional<ConstTensorView> d_lse = {};  // as lse, any float dtype
};

namespace detail {
QUIRE_API AttentionGradients paged_backward(const PagedBackwardInputs& inputs,
                                            const AttentionBackwardOptions& options);
}  // namespace detail

/// Gradients of keys and values are [pages, kv_heads, page_size, dim]; rows that no sequence uses
/// are 0. A page used by one sequence gets the bits of flex_attention_backward over that sequence
/// alone, in a dense tensor. A page used by several gets the sum of their gradients, in compute
/// type and rounded once, in an order that depends only on sequences and lengths. Throws Error as
/// flex_attention over paged keys and as above. (A template as well: name the struct in the
/// call.)
template <std::same_as<PagedBackwardInputs> Inputs>
AttentionGradients flex_attention_backward(const Inputs& inputs,
                                           const AttentionBackwardOptions& options = {}) {
  return detail::paged_backward(inputs, options);
}

}  // namespace quire
