// The attn_mask and is_causal of scaled_dot_product_attention as mods: a bool tensor is a mask that
// reads it, a float tensor a score mod that adds it. Sdpa layer.
#pragma once
#include <optional>

#include "quire/mod.h"
#include "quire/scaled_dot_product_attention.h"

namespace quire::sdpa {

/// At most one of them.
struct SdpaRules {
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};
};

/// What a mask tensor must broadcast to: [batch..., heads, q_len, kv_len], where b is the number of
/// the batch entry, row-major over the batch axes.
struct MaskTarget {
  Shape batch;
  std::int64_t heads = 0, q_len = 0, kv_len = 0;
};

/// The tensor is read in place and must outlive the rules. Throws Error for one that does not
/// broadcast or is neither bool nor float.
SdpaRules sdpa_rules(const char* where, const SdpaOptions& options, const MaskTarget& target);

}  // namespace quire::sdpa
