// BackwardRequest: a backward call without its memory: the forward's request and what is wanted.
// Validated by who fills it in. Plan layer.
#pragma once
#include <vector>

#include "plan/forward_request.h"
#include "quire/buffer.h"

namespace quire::plan {

/// As quire::WantedGradients.
struct Wanted {
  bool q = true;
  bool k = true;
  bool v = true;
  bool buffers = true;
};

struct BackwardRequest {
  ForwardRequest forward;
  Wanted wanted = {};
  /// All sequences read the same keys (a key batch of 1): their gradients are sums over sequences.
  bool shares_keys = false;
  /// Those that get a gradient. What the simplified score mod does not read has gradient 0.
  std::vector<Buffer> buffers = {};
};

}  // namespace quire::plan
