// Which of b, h, q_idx, kv_idx and score each value of a formula depends on, and the class that
// follows from it, which decides where and how often the tile program computes the value.
// Conservative: a reported dependence may be absent, a real one is never missed. Expects a
// simplified formula. Formula layer.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "formula/graph.h"

namespace quire::formula {

/// Positions, batches and heads are below this (in absolute value). Comparisons are classified
/// under that assumption: within it, q_idx >= kv_idx + 5 cannot wrap.
inline constexpr double kMaxPosition = 1099511627776.0;  // 2^40

enum class Dependence : std::uint8_t {
  kUniform,   // none of q_idx, kv_idx and score: one value per (b, h)
  kQuery,     // only q_idx
  kKey,       // only kv_idx
  kDiagonal,  // q_idx and kv_idx, only through kv_idx - q_idx
  kElement,   // q_idx and kv_idx in another way, or the score
};

struct Depends {
  bool b = false, h = false, q = false, kv = false, score = false;
  Dependence dependence = Dependence::kUniform;

  friend bool operator==(const Depends&, const Depends&) = default;
};

/// For all nodes, by id. The contents of buffers are not read, but the range of an integer buffer's
/// dtype is used: `q_idx + offset[b] >= kv_idx` is kDiagonal for offsets up to 32 bits; for int64
/// it is kElement (the sum may wrap), while `offset[b] >= kv_idx - q_idx` is always kDiagonal.
std::vector<Depends> depends(const Graph& graph);

/// "uniform", "query", "key", "diagonal", "element".
std::string_view dependence_name(Dependence dependence);

}  // namespace quire::formula
