// Depth: the position that a token of a tree has on its path, which is its position in the sequence
// once the path is kept (KVCache::keep). Mods of a step see it as q_idx and kv_idx. Plan layer.
#pragma once
#include <cstdint>
#include <span>

#include "plan/step_sequence.h"
#include "quire/buffer.h"
#include "quire/formula.h"

namespace quire::plan {

/// Rewrites the formulas of a step with trees to use depths. `b` of the results is the number of
/// the sequence in the step, by which tables are read; the formula itself sees b as `mod_b` says.
class StepDepths {
 public:
  StepDepths(std::span<const StepSequence> sequences, std::span<const std::int64_t> mod_b);

  template <class Mod>
  Mod apply(const Mod& mod) const {
    return Mod(substituted(mod.formula()));
  }

 private:
  Formula substituted(const Formula& formula) const;

  Buffer mod_b_, root_, first_, depths_;
};

/// Whether the formula reads q_idx or kv_idx.
bool reads_positions(const Formula& formula);

}  // namespace quire::plan
