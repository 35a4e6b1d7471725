// Rope: rotary positions applied when queries and keys are read, so that a cache can store keys
// unrotated and drop or shift tokens. Public; formula layer.
#pragma once
#include <cstdint>
#include <optional>

#include "quire/buffer.h"

namespace quire {

/// Query row q_idx and key row kv_idx are rotated by their positions before their product: for pair
/// i, (x, y) becomes (x cos a - y sin a, x sin a + y cos a). The angle a is position * theta^(-2i /
/// dims), or its cos and sin come from tables.
struct Rope {
  double theta = 10000;  // > 0
  /// Both or neither: floats [positions, dims / 2]. Contents are read at each run, and get no
  /// gradient. Positions outside are an error of the call.
  std::optional<Buffer> cos = {}, sin = {};
  std::int64_t dims = 0;     // how many numbers of a row are rotated, from the first; even; 0: all
  bool interleaved = false;  // pair i is (2i, 2i + 1); otherwise halves, (i, i + dims / 2)
};

}  // namespace quire
