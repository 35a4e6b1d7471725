// GradientPlan: the gradients of captured buffers in a backward plan: the program of score mod and
// derivatives, its scratch, where gradients are summed, and how they are written to the caller's
// tensors. Knows nothing of tasks. Plan layer.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "formula/gradient/compile_gradient.h"
#include "kernels/backward/gradient_program.h"
#include "quire/buffer.h"
#include "quire/formula.h"
#include "quire/tensor.h"

namespace quire::plan {

struct GradientRequest {
  const Formula* score_mod = nullptr;    // simplified; null: there is none
  formula::CompileOptions compile = {};  // as prefill's, with the backward's rows of a tile
  kernels::GradientSizes sizes = {};     // longest sequence of queries, longest chunk of keys
  std::span<const Buffer> buffers = {};  // those that get a gradient; empty: value and slope only
};

/// Copies elements of `from`, row-major and of type float or double, to floats of any dtype and
/// strides; null: zeros.
template <class T>
void write_elements(const T* from, const TensorView& to);

class GradientPlan {
 public:
  explicit GradientPlan(const GradientRequest& request);
  GradientPlan(const GradientPlan&) = delete;  // targets_ points into it
  GradientPlan& operator=(const GradientPlan&) = delete;

  /// Null without a score mod.
  const kernels::GradientProgram* program() const {
    return has_program_ ? &compiled_.program : nullptr;
  }
  const kernels::GradientSizes& sizes() const { return sizes_; }
  const kernels::GradientTargets& targets() const { return targets_; }

  /// Scratch of one thread (kernels::GradientRunner). What threads share the plan holds itself:
  /// turns, and sums of gradients that are not returned in compute type.
  std::size_t thread_bytes() const { return thread_bytes_; }
  std::size_t shared_bytes() const;

  /// Call before the first task of a run: `outputs` are for the request's buffers, in that order,
  /// of any strides. They must stay valid until end_run. Allocates only for the first output in
  /// compute type that is not row-major.
  void begin_run(std::span<const TensorView> outputs);
  /// Call after the last task: writes what is not in the outputs yet.
  void end_run(std::span<const TensorView> outputs) const;

 private:
  bool has_program_ = false;
  DType compute_type_ = DType::f32;
  formula::CompiledGradient compiled_;
  kernels::GradientSizes sizes_;
  std::size_t thread_bytes_ = 0;
  std::vector<int> target_of_;  // by buffer of the request; -1: gradient 0
  std::vector<Tensor> sums_;    // by target, for outputs of another dtype or order
  std::vector<void*> gradients_;
  std::vector<kernels::Turn> turns_;  // of heads, then of query tiles
  kernels::GradientTargets targets_;
};

}  // namespace quire::plan
