// The mods of calls from JAX: formulas by their texts, parsed once, and block masks, proved once
// for as long as the arrays of their rules stay the same. Python layer, but nothing here touches
// Python objects.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "quire/block_mask.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::python {

/// A text, the names it reads arrays by, separated by commas, and the arrays in that order.
struct JaxRule {
  std::string_view text;
  std::string_view names;
  std::span<const ConstTensorView> arrays;
};

/// What create_block_mask takes besides the rule.
struct JaxMaskSizes {
  std::int64_t batch = 1, heads = 1, q_len = 0, kv_len = 0;
  BlockSize block_size = {};
};

/// The formula over these arrays, which it borrows. learns: a '1' for each array that gets a
/// gradient; empty: none does. Throws Error for a text that does not parse.
Formula bound_formula(const JaxRule& rule, std::string_view learns = {});

/// The proved mask; its rule borrows the arrays. Throws as create_block_mask.
BlockMask proved_mask(const JaxRule& rule, const JaxMaskSizes& sizes);

}  // namespace quire::python
