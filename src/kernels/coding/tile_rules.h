// Memory for the rules by which the codes of a tile of keys become integers. Kernels layer.
#pragma once
#include "kernels/attention_order.h"
#include "kernels/coding/functions.h"
#include "kernels/scratch_layout.h"

namespace quire::kernels {

/// Without `scales`, which the caller has elsewhere. Finding rules writes a few rows too many.
inline IntegerRules take_rules(const RowCoding& coding, int columns, ScratchLayout& layout) {
  IntegerRules rules;
  if (!become_integers(coding)) return rules;
  rules.step = kTileKeys + 16;
  const ptrdiff_t groups = code_groups(coding, columns);
  const auto numbers = static_cast<size_t>(coding.group == 1 ? groups : groups * rules.step);
  rules.multipliers = layout.take<int32_t>(numbers);
  rules.offsets = layout.take<int32_t>(coding.shift == CodeShift::kNone ? 0 : numbers);
  return rules;
}

}  // namespace quire::kernels
