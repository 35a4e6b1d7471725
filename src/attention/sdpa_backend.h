// Which backend computes a call of scaled_dot_product_attention, and why the others do not.
// Attention layer.
#pragma once
#include <string>
#include <vector>

#include "quire/scaled_dot_product_attention.h"

namespace quire::attention {

/// What the reasons are about.
struct BackendProblem {
  std::int64_t head_dim = 0, v_head_dim = 0;
};

/// Every reason why a backend cannot compute a valid call; none if it can.
std::vector<std::string> backend_reasons(SDPBackend backend, const BackendProblem& problem,
                                         const SdpaOptions& options);

/// The first of FLASH, EFFICIENT, MATH without a reason; kError if there is none.
SDPBackend first_backend(const BackendProblem& problem, const SdpaOptions& options);

/// The same, but throws Error with the reasons of each if none is left.
SDPBackend required_backend(const BackendProblem& problem, const SdpaOptions& options);

}  // namespace quire::attention
