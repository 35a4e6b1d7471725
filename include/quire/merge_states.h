// merge_states: combines attention over several sets of keys from the results over each set. A
// state is an output and its lse; how the keys were divided does not matter. Public; attention
// layer.
#pragma once
#include <span>

#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

/// The result of flex_attention or attend over some of the keys.
struct AttentionState {
  ConstTensorView out;  // [..., dim], f32, f64, bf16 or f16, any strides
  ConstTensorView lse;  // [...], f32 or f64, natural log, any strides
};

struct MergedState {
  Tensor out, lse;
};

/// The state over all keys of all states: lse = log(sum of exp(lse)), out = the sum of the outs
/// weighted by exp(their lse - lse). Shapes and dtypes must be equal; the result has them,
/// row-major. Computed in f64, rounded once. The order of states changes the result only by
/// rounding. A row with lse = -inf saw nothing: its out is not read, and merging it changes no bit
/// of the others. A row without any live state gives 0 and -inf; a NaN lse gives NaN. Throws Error
/// for no states, and for mismatched shapes and dtypes. Thread safe.
QUIRE_API MergedState merge_states(std::span<const AttentionState> states);
QUIRE_API MergedState merge_states(const AttentionState& a, const AttentionState& b);

}  // namespace quire
