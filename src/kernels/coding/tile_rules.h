// Memory for the rules by which the codes of a tile of keys become integers. Kernels layer.
#pragma once
#include "kernels/attention_order.h"
#include "kernels/coding/functions.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

/// Without `scales`, which the caller has elsewhere. Finding rules writes a few rows too many.
inline IntegerRules take_rules(int groups, ScratchLayout& layout) {
  IntegerRules rules;
  rules.step = kTileKeys + 16;
  rules.multipliers = layout.take<int32_t>(static_cast<size_t>(groups * rules.step));
  rules.offsets = layout.take<int32_t>(static_cast<size_t>(groups * rules.step));
  return rules;
}

}  // namespace quire::kernels
