// lse and max_scores of a call: asked for, made, checked, handed to the plan. Attention layer.
#pragma once
#include <optional>

#include "plan/forward_plan.h"
#include "quire/flex_attention.h"
#include "quire/tensor.h"

namespace quire::attention {

/// Throws Error if something is asked for and there is no place to put it.
void validate_aux(const char* where, const AuxRequest& wanted, const AuxOutput* aux);

/// Makes what is asked for, [rows...] in `type`, and enters it into the outputs of a plan's run.
template <class Outputs>
AuxOutput make_aux(const AuxRequest& wanted, const Shape& rows, DType type, Outputs& outputs) {
  AuxOutput aux;
  if (wanted.lse) outputs.lse = aux.lse.emplace(Tensor::empty(rows, type)).view();
  if (wanted.max_scores)
    outputs.max_scores = aux.max_scores.emplace(Tensor::empty(rows, type)).view();
  return aux;
}

struct StatViews {
  const std::optional<TensorView>&lse, &max_scores;
};

/// Those that are given, into the tensors of a run. Throws Error for another shape, dtype or order.
void set_stats(const char* where, const StatViews& given, const Shape& rows, DType type,
               plan::ForwardTensors& tensors);

}  // namespace quire::attention
