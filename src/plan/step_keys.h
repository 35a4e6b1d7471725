// StepKeys: what the queries of a step over a KVCache see, as runs of keys, determined once per
// step for all layers. Where positions decide (causal, windows, trees) nothing is proved; a rule is
// proved for the rows of the step, key by key where they decode and in blocks where they prefill.
// Plan layer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plan/rule_proof.h"
#include "plan/step_sequence.h"
#include "plan/visible_keys.h"
#include "quire/executor.h"
#include "quire/mod.h"

namespace quire::plan {

/// The rule of a step, which decides for sequences without one of their own
/// (StepSequence::is_common).
struct StepRule {
  std::optional<MaskMod> program;  // positions and rule together
  std::int64_t q_heads = 1, group = 1;
  Executor* executor = nullptr;
  RuleMemory* memory = nullptr;  // of earlier steps
};

class StepKeys final : public VisibleKeys {
 public:
  /// Throws the Error of the first visible element of a rule with a fault.
  StepKeys(std::span<const StepSequence> sequences, const StepRule& rule);

  kernels::KeyRuns row(std::int64_t sequence, std::int64_t h, std::int64_t row) const override;
  std::span<const kernels::LaneRuns> tile(std::int64_t sequence, std::int64_t h,
                                          std::int64_t tile) const override;
  std::int64_t keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const override;

  /// Whether some run is left to the program to decide.
  bool asks() const { return asks_; }
  /// The first sequence that sees a key that does not exist; -1: none does.
  std::int64_t first_missing() const { return first_missing_; }
  /// Whether some query of a sequence sees keys after its own.
  bool sees_later(std::int64_t sequence) const {
    return sees_later_[static_cast<std::size_t>(sequence)];
  }

 private:
  struct Builder;

  // Of one sequence: rows or tiles of each plane.
  struct Place {
    std::int64_t first = 0;  // in rows_, or in first_lanes_
    std::int64_t per_plane = 0;
    bool by_head = false;
  };
  std::size_t at(std::int64_t sequence, std::int64_t h, std::int64_t i) const {
    const Place& place = places_[static_cast<std::size_t>(sequence)];
    return static_cast<std::size_t>(place.first + (place.by_head ? h * place.per_plane : 0) + i);
  }

  std::vector<Place> places_;
  std::vector<kernels::KeyRuns> rows_;       // of sequences that decode
  std::vector<kernels::LaneRuns> lanes_;     // of tiles of sequences that prefill
  std::vector<std::int64_t> first_lanes_{};  // of each tile, in lanes_, and the end
  std::vector<kernels::KeyRun> runs_;
  std::vector<bool> sees_later_;
  std::int64_t first_missing_ = -1;
  bool asks_ = false;
};

}  // namespace quire::plan
