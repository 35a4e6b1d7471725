// BackwardRequest: a backward call without its memory: the forward's request and which gradients
// are computed. The problem has been validated. Plan layer.
#pragma once
#include <utility>
#include <vector>

#include "plan/forward_request.h"
#include "quire/buffer.h"

namespace quire::plan {

struct BackwardRequest {
  BackwardRequest(AttentionProblem problem, const WantedGradients& gradients,
                  std::vector<Buffer> of_buffers)
      : shares_keys(problem.shares_keys()),
        forward(std::move(problem)),
        wanted(gradients),
        buffers(std::move(of_buffers)) {}

  /// All sequences read the same keys (a key batch of 1): their gradients are sums over sequences.
  bool shares_keys;
  ForwardRequest forward;
  WantedGradients wanted;
  /// The buffers that get a gradient. It is 0 where the simplified score mod does not read the
  /// buffer.
  std::vector<Buffer> buffers;
};

}  // namespace quire::plan
