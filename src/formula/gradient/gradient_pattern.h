// Chooses how the gradient of one buffer read is summed: a pure function of the classes and steps
// of its index. Formula layer.
#pragma once
#include <cstdint>

#include "kernels/backward/gradient_program.h"

namespace quire::formula {

/// What is known of a read over tiles with queries across the lanes and keys as rows.
struct ReadForm {
  kernels::TileClass index = kernels::TileClass::kUniform;
  /// dot: the class of the other side's index.
  bool is_dot = false;
  kernels::TileClass other = kernels::TileClass::kUniform;
  /// index = uniform + lane * lane_step + row * row_step.
  bool is_affine = false;
  std::int64_t lane_step = 0, row_step = 0;
  std::int64_t queries = 0, keys = 0;  // number of values of q_idx and kv_idx
  bool reads_one = true;               // one element per index, not several (sum)
  bool only_read = true;               // the only read of its buffer
  bool fixes_head = false;             // different (b, h) never read the same element
};

/// Worked examples, for 2,048 queries and keys:
///   bias[h]: uniform. table[clamp(q_idx - kv_idx, -9, 9) + 9]: diagonal. pos[q_idx, kv_idx]:
///   affine with steps 2,048 and 1, and 1 * 2,048 <= 2,048, so two elements of a head never meet:
///   shared, or owned if an index is b and one is h. table[q_idx + kv_idx]: they do meet: gather.
///   dot(a[h, q_idx], b[kv_idx]): side a is a product over keys (kDotLane), side b over queries
///   (kDotRow). dot(a[q_idx], b[q_idx]): the contributions of a query come together first (kLane).
kernels::GradientPattern choose_pattern(const ReadForm& read);

}  // namespace quire::formula
