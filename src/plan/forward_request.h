// ForwardRequest: a forward call without its memory: sizes, types, rules, where queries and keys
// lie. Validated by who fills it in. Plan layer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/forward_problem.h"
#include "layout/key_layout.h"
#include "layout/query_layout.h"
#include "plan/mask_source.h"
#include "plan/position_keys.h"
#include "quire/dtype.h"
#include "quire/executor.h"
#include "quire/formula.h"

namespace quire::plan {

struct ForwardRequest {
  std::int64_t batch = 0;  // sequences
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t q_len = 0;  // of the longest sequence
  std::int64_t head_dim = 0, v_head_dim = 0;
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  double scale = 1;
  kernels::Dropout dropout = {};
  std::optional<Formula> score_mod = {};  // simplified, and more than the score itself
  MaskSource block_mask = {};
  std::optional<PositionRule> positions = {};  // instead of block masks
  std::vector<std::int64_t> q_begin = {0};  // q_idx of the first query: of every sequence, or one
  std::shared_ptr<const layout::QueryLayout> queries = {};  // null: dense, q_len each
  std::shared_ptr<const layout::KeyLayout> layout = {};
  std::int64_t longest_kv = 0;  // of all sequences
  std::shared_ptr<Executor> executor = {};

  /// Query heads per key head.
  std::int64_t group() const { return kv_heads == 0 ? 1 : q_heads / kv_heads; }
  /// q_idx of the first query of a sequence.
  std::int64_t begin_of(std::int64_t sequence) const {
    return q_begin.size() == 1 ? q_begin[0] : q_begin[static_cast<std::size_t>(sequence)];
  }
  /// Whether it is computed in f64.
  bool is_f64() const {
    return q_dtype == DType::f64 || k_dtype == DType::f64 || v_dtype == DType::f64;
  }
};

}  // namespace quire::plan
