// Rows of a backward pass whose |lse| is so large that rounding it shows in the weights: at 1e6 the
// nearest float is up to 1/32 away, and e^(score - lse) is off by 3 %; where a bias of -1e9 hides
// all keys of a row, each of its n weights is 1 instead of 1 / n. The maximum and sum of such rows
// are computed once more, which gives the factor by which all their weights are off. Plan layer.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>

#include "plan/forward_plan.h"
#include "plan/forward_request.h"
#include "quire/tensor.h"

namespace quire::plan {

/// Rows with |lse| above this are large. Below, weights are off by 2^-18 at most, no more than the
/// rounding of scores of that size.
inline constexpr double kLargeLse = 128;

/// Whether a live row is large.
template <class T>
bool is_large(T lse) {
  return std::isfinite(lse) && std::abs(lse) > static_cast<T>(kLargeLse);
}

class LargeRows {
 public:
  /// `forward`: must outlive it.
  explicit LargeRows(const ForwardRequest& forward) : forward_(forward) {}

  /// Walks all rows. Allocates, the first time. Throws as ForwardPlan::run does.
  void run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v);

  /// The factor that the weights e^(score - lse) of a row need; 1 where the lse is not that of the
  /// row's keys, as when keys are divided among calls.
  template <class T>
  T correction(const kernels::ForwardCall& call, std::int64_t h, std::int64_t row, T lse) const;

  /// The index of a row in lse, [batch, heads, queries].
  std::int64_t row_number(std::int64_t batch, std::int64_t h, std::int64_t row) const {
    return (batch * forward_.q_heads + h) * rows_ + row;
  }

 private:
  const ForwardRequest& forward_;
  std::optional<ForwardPlan> plan_;
  std::int64_t rows_ = 0;
  Tensor stats_, out_;  // [2][rows]: maxima, sums
};

}  // namespace quire::plan
