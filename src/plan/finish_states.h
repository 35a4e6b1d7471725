// Computes outputs from the states that runs have kept (kernels/row_states.h): the states of a row
// are folded in the order of their keys, rows in parallel. Plan layer.
#pragma once
#include <cstdint>
#include <span>

#include "plan/forward_plan.h"
#include "plan/forward_request.h"
#include "quire/tensor_view.h"

namespace quire::plan {

/// States per row in a run that keeps one per split: as many as the longest sequence has splits.
std::int64_t state_count(const AttentionProblem& problem);

/// states: row-major, in the order of their keys. Only the outputs of `tensors` are used.
void finish_states(const ForwardRequest& request, std::span<const ConstTensorView> states,
                   const ForwardTensors& tensors);

}  // namespace quire::plan
