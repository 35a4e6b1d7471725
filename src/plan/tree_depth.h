// Depth: the position that a token of a tree has on its path, which is its position in the sequence
// once the path is kept (KVCache::keep). Mods of a step see it as q_idx and kv_idx. Plan layer.
#pragma once
#include <cstdint>
#include <span>

#include "plan/step_sequence.h"
#include "quire/buffer.h"
#include "quire/formula.h"

namespace quire::plan {

/// Formulas of a step with trees, asked with depths: tables by the number of the sequence in the
/// step, which `b` of the results is; the formula itself sees what `mod_b` says.
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

/// Whether it reads q_idx or kv_idx.
bool reads_positions(const Formula& formula);

}  // namespace quire::plan
