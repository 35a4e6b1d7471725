// GradientProgram: a score mod with its derivatives as one tile program, and for every place where
// it reads a buffer that wants a gradient, how that gradient is summed up. formula/ builds it,
// gradient_runner.h runs it. Plain data. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backward/turn.h"
#include "kernels/tile/tile_program.h"

namespace quire::kernels {

/// d(modified score)/d(score).
enum class SlopeKind : uint8_t {
  kOne,      // score + something: no multiplication is needed
  kUniform,  // one number for the tile, 0 too
  kElement,  // a tile of numbers
};

/// How the contributions d_modified * factor of a tile's elements are added up. Classes are those
/// of the index (of a dot: of both indices together), queries across the lanes, keys as rows.
enum class GradientPattern : uint8_t {
  kUniform,   // bias[h]: one number per head of an item
  kLane,      // bias[h, q_idx], w[type[q_idx]]: a number per query
  kRow,       // bias[h, kv_idx]: a number per key
  kDiagonal,  // table[q_idx - kv_idx + n], clamped too: a number per diagonal
  kOwned,     // bias[b, h, q_idx, kv_idx]: directly into the gradient, nothing else adds there
  kShared,    // pos[q_idx, kv_idx]: directly into the gradient, in turns
  kGather,    // w[type[b, q_idx, kv_idx]]: into a copy of the gradient per thread
  kDotLane,   // the q side of dot(a[h, q_idx], b[kv_idx]): a product
  kDotRow,    // the kv side of it
};

/// One place where the mod reads a buffer. The gradient of a buffer is dense and row-major; the
/// read addresses `width` neighbouring elements of it, "row" number `index`.
struct GradientSite {
  GradientPattern pattern = GradientPattern::kUniform;
  int target = 0;
  int64_t width = 1;  // elements under one index: sum and dot read several
  bool has_factor = false;
  TileOperand factor = {};  // float
  /// int32 or int64. kOwned, kShared: the uniform index at (row 0, lane 0), from which the steps
  /// count.
  TileOperand index = {};
  int64_t lane_step = 0, row_step = 0;
  /// For a dot, contributions are multiplied by the element of the other side: its offset (int64)
  /// and its entry in the program's buffers; -1: not a dot.
  int16_t other_buffer = -1;
  TileOperand other_offset = {};
};

struct GradientProgram {
  TileProgram tile;
  SlopeKind slope = SlopeKind::kOne;
  TileOperand slope_value = {};  // unless kOne
  std::vector<GradientSite> sites;
  std::vector<int64_t> target_sizes;  // elements
};

/// Where gradients go: for each target its elements in compute type, dense; and the turns.
struct GradientTargets {
  void* const* gradients = nullptr;
  Turn* head_turn = nullptr;
  Turn* query_turns = nullptr;  // one per query tile of the longest sequence, for kShared
  int query_turn_count = 0;
};

/// The sizes that private sums are for.
struct GradientSizes {
  int64_t q_len = 0;   // of the longest sequence
  int64_t kv_len = 0;  // of a chunk
};

}  // namespace quire::kernels
