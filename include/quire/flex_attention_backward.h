// flex_attention_backward: the gradients of flex_attention, in one fused pass that recomputes the
// scores tile by tile from lse. Dense, jagged and paged. Public; attention layer.
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
#include <concepts>
#include <optional>

#include "quire/attention.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/jagged.h"

namespace quire {

using FlexAttentionBackwardOptions = AttentionBackwardOptions;
using JaggedBackwardOptions = AttentionBackwardOptions;

/// Computed in f32, in f64 if one of q, k, v is f64. Rows that see nothing, and elements the mask
/// hides, add exactly nothing; keys no query sees are not read and have gradient 0. Dropout is
/// replayed from its seed. Thread safe. Throws Error for what does not fit together, before
/// anything is computed, and, as the forward does, for the first visible element whose mod reads
/// outside a buffer.
QUIRE_API AttentionGradients flex_attention_backward(const BackwardInputs& inputs,
                                                     const AttentionBackwardOptions& options = {});

/// Of jagged batches. out, d_out, lse and d_lse are in q's order, as the forward gives them.
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
/// flex_attention over jagged batches and as above. (A template, so that the dense one is preferred
/// for `{.q = tensor, ...}`, which could mean either.)
template <class Inputs = JaggedBackwardInputs>
  requires std::same_as<Inputs, JaggedBackwardInputs>
AttentionGradients flex_attention_backward(const Inputs& inputs,
                                           const AttentionBackwardOptions& options = {}) {
  return detail::jagged_backward(inputs, options);
}

/// Of paged keys and values.
struct PagedBackwardInputs {
  ConstTensorView q;                          // [n, q_heads, q_len, dim]
  PagedKeys keys;                             // as of the forward
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
/// are 0. The rows of a page with one user have the bits of flex_attention_backward over that
/// sequence alone, in a dense tensor. A page with several users sums what each of them adds, in
/// compute type and rounded once, in an order that depends on sequences and lengths alone. Throws
/// Error as flex_attention over paged keys and as above. (A template as well: the struct must be
/// named in the call.)
template <std::same_as<PagedBackwardInputs> Inputs>
AttentionGradients flex_attention_backward(const Inputs& inputs,
                                           const AttentionBackwardOptions& options = {}) {
  return detail::paged_backward(inputs, options);
}

}  // namespace quire
