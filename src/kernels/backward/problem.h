// One backward call as the kernels see it. The plan fills it in. Plain data. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/backward/gradient_program.h"
#include "kernels/backward/turn.h"
#include "kernels/forward_problem.h"
#include "kernels/prefill/prefill.h"

namespace quire::kernels {

/// A gradient to be computed. Null: not wanted.
struct GradientTensor {
  void* data = nullptr;
  ForwardTensor rows;
};

/// Constant over all items of a run. Of `forward`: q, k, v and their steps, dims, scale, form,
/// pairs, dropout, the mask program of prefill.
struct BackwardCall {
  ForwardCall forward;
  const void* d_out = nullptr;  // null: 0
  ForwardTensor d_out_rows;
  bool wants_q = false;      // gradients of q; tiles say where they go
  bool shares_keys = false;  // several heads, or batch entries, see the keys of a chunk
  GradientTensor d_k, d_v;
  const GradientProgram* gradient = nullptr;  // of the score mod; null: there is none
};

/// A query tile and its rows' numbers, as prepare_rows leaves them.
struct BackwardTile {
  QueryTile at;  // out_offset: into d_out; stat_offset is not used
  /// [64], compute type; +inf for lanes without a query. For weights by a formula: their factor, 1
  /// or 1 / their sum; 0 for lanes without a query.
  const void* lse = nullptr;
  const void* delta = nullptr;  // [64]
  const void* share = nullptr;  // [64]: factor of d_out (sinks); null: 1
  uint64_t live = 0;            // rows that see something
  void* d_q = nullptr;          // rows of compute type, whole panels of columns
  ptrdiff_t d_q_step = 0;
  Turn* turn = nullptr;  // of those rows
  int number = 0;        // of this chunk among those that the tile sees
};

}  // namespace quire::kernels
