// The same answers without an engine: one sample at a time, with its own cache, other pages, and
// the whole prompt in one step. The engine must agree with it.
#pragma once
#include "model.h"
#include "request.h"

namespace engine {

Sample run_alone(const Model& model, const Request& request, std::size_t which, int number);

// The same tokens, and the same bits of all logits.
bool are_equal(const Sample& a, const Sample& b);

}  // namespace engine
