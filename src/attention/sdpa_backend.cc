// Reasons, one sentence each. Attention layer.
#include "attention/sdpa_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/validate.h"
#include "quire/error.h"

namespace quire::attention {
namespace {

constexpr SDPBackend kInOrder[] = {SDPBackend::kFlashAttention, SDPBackend::kEfficientAttention,
                                   SDPBackend::kMath};

const char* name_of(SDPBackend backend) {
  switch (backend) {
    case SDPBackend::kMath:
      return "MATH";
    case SDPBackend::kFlashAttention:
      return "FLASH_ATTENTION";
    case SDPBackend::kEfficientAttention:
      return "EFFICIENT_ATTENTION";
    case SDPBackend::kError:
      break;
  }
  return "ERROR";
}

}  // namespace

std::vector<std::string> backend_reasons(SDPBackend backend, const BackendProblem& problem,
                                         const SdpaOptions& options) {
  const char* const name = name_of(backend);
  if (std::find(std::begin(kInOrder), std::end(kInOrder), backend) == std::end(kInOrder))
    return {"ERROR is not a backend: it says that none is left."};
  std::vector<std::string> reasons;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
    reasons.push_back(fmt::format(text, std::forward<Args>(args)...));
  };
  if (std::find(options.backends.begin(), options.backends.end(), backend) ==
      options.backends.end())
    add("{} is not among the backends that may be used.", name);
  if (backend == SDPBackend::kMath) return reasons;
  if (std::max(problem.head_dim, problem.v_head_dim) > kMostDims) {
    add("{} takes head dims of 0 to {}; got {} for query and key and {} for value.", name,
        kMostDims, problem.head_dim, problem.v_head_dim);
  }
  return reasons;
}

SDPBackend first_backend(const BackendProblem& problem, const SdpaOptions& options) {
  for (const SDPBackend backend : kInOrder)
    if (backend_reasons(backend, problem, options).empty()) return backend;
  return SDPBackend::kError;
}

SDPBackend required_backend(const BackendProblem& problem, const SdpaOptions& options) {
  const SDPBackend found = first_backend(problem, options);
  if (found != SDPBackend::kError) return found;
  std::string text =
      "[scaled_dot_product_attention] No viable backend for scaled_dot_product_attention was "
      "found.";
  for (const SDPBackend backend : kInOrder)
    for (const std::string& reason : backend_reasons(backend, problem, options))
      text += " " + reason;
  throw Error(ErrorKind::runtime, text);
}

}  // namespace quire::attention
