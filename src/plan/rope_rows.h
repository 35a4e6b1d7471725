// RopeRows: the cos and sin of positions as the kernels take them, for one plan: made from theta
// once, or the caller's tables, read in place where possible, else converted at each run. Plan
// layer.
#pragma once
#include <cstdint>

#include "kernels/rope.h"
#include "quire/attention_problem.h"
#include "quire/tensor.h"

namespace quire::plan {

class RopeRows {
 public:
  /// For a validated problem; empty without rope.
  explicit RopeRows(const AttentionProblem& problem);

  /// Converts the caller's tables again where they are not read in place. Allocates nothing.
  void read();
  /// half is 0 without rope.
  kernels::RopeTables tables() const;

 private:
  template <class T>
  void make_from_theta(const Rope& rope, std::int64_t positions);

  std::optional<Rope> rope_;
  std::int64_t half_ = 0;
  DType dtype_ = DType::f32;
  bool is_cos_copied_ = false, is_sin_copied_ = false;
  Tensor cos_, sin_;         // copies
  Tensor high_, mid_, low_;  // [rows, 2, half]
  Tensor low_columns_;       // [half, 2, rows]
};

/// How many positions the queries and keys of a problem need: up to the last one.
std::int64_t rope_positions(const AttentionProblem& problem);

}  // namespace quire::plan
