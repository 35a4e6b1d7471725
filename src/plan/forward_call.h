// What forward and backward passes derive from a request in the same way: sizes and form of the
// kernels' call, strides of tensors, the index ranges programs are compiled for, and the rule that
// kernels evaluate. Plan layer.
#pragma once
#include <optional>

#include "formula/compile/compile.h"
#include "kernels/forward_problem.h"
#include "plan/forward_request.h"
#include "quire/formula.h"
#include "quire/mod.h"
#include "quire/tensor.h"
#include "quire/tensor_view.h"

namespace quire::plan {

/// Whether a call multiplies pairs of bf16: all of it is bf16, or codes, which are rounded to bf16.
bool multiplies_pairs(const AttentionProblem& problem, const kernels::KernelTable& table);

/// Sizes, types and form of the softmax; programs and addresses come later.
kernels::ForwardCall call_of(const ForwardRequest& request, const kernels::KernelTable& table);

/// Into `to`, [q_heads] of compute type, made if it is empty. Nothing without sinks.
void read_sinks(const ForwardRequest& request, Tensor& to);

/// Of [batch, heads, len, dim].
kernels::ForwardTensor steps_of(const ConstTensorView& view);

/// Of scales [batch, heads, len, scales of a row]; without rows if there are none.
kernels::RowScales scale_rows(const ConstTensorView& scales);

/// For all tiles of a request, queries along the lanes.
formula::CompileOptions compile_options(const ForwardRequest& request, int max_rows);

/// Simplified; nothing if it is always true.
std::optional<Formula> rule_to_evaluate(const MaskMod& rule);

}  // namespace quire::plan
