// The passes of flex_attention where each rank computes some heads over the whole sequence
// (Exchange::kHeads): a head's arithmetic is that of one process, gradients too. Context_parallel
// layer.
#pragma once
#include <vector>

#include "context_parallel/call.h"
#include "quire/buffer.h"
#include "quire/context_parallel.h"

namespace quire::context_parallel {

Output attend_by_heads(Call& call, const ConstTensorView& q, const ConstTensorView& k,
                       const ConstTensorView& v);
/// `buffers`: of the score mod, those whose gradients are wanted.
Gradients gradients_by_heads(Call& call, const BackwardInputs& inputs,
                             const std::vector<Buffer>& buffers);

}  // namespace quire::context_parallel
