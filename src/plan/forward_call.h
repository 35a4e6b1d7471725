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

/// Sizes, types and form of the softmax; programs and addresses come later.
kernels::ForwardCall call_of(const ForwardRequest& request, const kernels::KernelTable& table);

/// How scores become weights.
kernels::WeightRule weight_rule_of(const ForwardRequest& request);

/// Reads the sinks into `to`, [q_heads] of compute type, which is allocated if empty. Does nothing
/// without sinks.
void read_sinks(const ForwardRequest& request, Tensor& to);

/// The steps of a view [batch, heads, len, dim].
kernels::ForwardTensor steps_of(const ConstTensorView& view);

/// The rows of scales [batch, heads, len, scales of a row]; empty if there are no scales.
kernels::RowScales scale_rows(const ConstTensorView& scales);

/// Options for all tiles of a request, queries along the lanes.
formula::CompileOptions compile_options(const ForwardRequest& request, int max_rows);

/// The rule, simplified; nothing if it is always true.
std::optional<Formula> rule_to_evaluate(const MaskMod& rule);

}  // namespace quire::plan
