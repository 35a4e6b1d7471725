// StepSequence: one sequence of a step over a KVCache, and the rules for what its queries see. Plan
// layer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/mod.h"

namespace quire::plan {

/// Keys that positions show: those up to the query's own, limited to the last `window` and the
/// first `sinks` of them.
struct PositionWindow {
  std::int64_t window = 0;  // 0: all
  std::int64_t sinks = 0;

  friend bool operator==(const PositionWindow&, const PositionWindow&) = default;
};

/// One sequence of a step.
struct StepSequence {
  std::int64_t q_begin = 0, queries = 0, length = 0;
  std::int64_t hole_begin = 0, hole_end = 0;  // keys that do not exist
  std::int64_t b = 0;                         // as its rule sees it
  /// If set, positions decide; otherwise the rule alone does.
  std::optional<PositionWindow> positions = {};
  /// The last parents.size() tokens are a tree: each sees the tokens before the tree, its ancestors
  /// and itself, and windows count along its path. -1: a child of the last token before the tree.
  /// With positions only.
  std::span<const std::int64_t> parents = {};
  const MaskMod* rule = nullptr;  // applies to what positions show
  /// Its rule and window are those of the step, so the step's program can decide for it in the
  /// kernels. If not, its runs are exact, key by key.
  bool is_common = true;
  bool is_chosen = false;  // its queries listed their keys (Kernel::kChosen)
};

/// The depth of every token of the tree: the length of its path from position 0 on, itself not
/// counted.
std::vector<std::int64_t> depths_of(const StepSequence& of);

}  // namespace quire::plan
