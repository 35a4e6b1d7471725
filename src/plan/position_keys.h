// PositionKeys: the visible keys of queries where their position alone decides (causal, causal with
// a window, or everything left to the mask program), written down without a proof, for batches
// whose lengths change with every step. The same for all heads. Plan layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "layout/key_layout.h"
#include "layout/query_layout.h"
#include "plan/visible_keys.h"
#include "quire/attention_problem.h"

namespace quire::plan {

/// The sequences of a call; referred to only while PositionKeys are made.
struct Batch {
  std::int64_t sequences = 0, group = 1;
  const layout::QueryLayout& queries;
  const layout::KeyLayout& keys;
  const std::vector<std::int64_t>& q_begin;  // of every sequence, or one
  const layout::ChosenKeys* chosen = nullptr;
};

class PositionKeys final : public VisibleKeys {
 public:
  PositionKeys(const PositionRule& rule, const Batch& batch);

  kernels::KeyRuns row(std::int64_t sequence, std::int64_t h, std::int64_t row) const override;
  std::span<const kernels::LaneRuns> tile(std::int64_t sequence, std::int64_t h,
                                          std::int64_t tile) const override;
  std::int64_t keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const override;

  /// Whether some run is for the mask program to decide.
  bool asks() const { return asks_; }

 private:
  // Of one sequence.
  struct Sequence {
    std::int64_t q_begin, length, first;
  };
  void add_row(const PositionRule& rule, const Sequence& of, std::int64_t q_idx);
  void add_tile(const PositionRule& rule, const Sequence& of, std::int64_t q_idx, int queries);
  void add_run(std::int64_t begin, std::int64_t end, bool full);

  std::vector<std::int64_t> first_;       // of each sequence, in rows_ or tiles_
  std::vector<kernels::KeyRuns> rows_;    // of sequences that decode
  std::vector<kernels::LaneRuns> tiles_;  // of sequences that prefill
  std::vector<kernels::KeyRun> runs_;     // reserved before: addresses stay
  bool asks_ = false;
};

}  // namespace quire::plan
