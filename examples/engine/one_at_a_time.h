// The same answers without an engine: one sample at a time, a cache of its own, other pages, the
// whole prompt in one step. What the engine must agree with.
#pragma once
#include "model.h"
#include "request.h"

namespace engine {

Sample run_alone(const Model& model, const Request& request, std::size_t which, int number);

// The same tokens, and the same bits of all logits.
bool are_equal(const Sample& a, const Sample& b);

}  // namespace engine
