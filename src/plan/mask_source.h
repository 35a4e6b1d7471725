// MaskSource: where the block mask of a sequence comes from: one mask for the whole batch, whose
// planes are (batch entry, head), or a mask per sequence, whose planes are heads; or there is none.
// Sequences may share a mask. The rule is one for all. Plan layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/block_mask.h"

namespace quire::plan {

class MaskSource {
 public:
  MaskSource() = default;
  MaskSource(const std::optional<BlockMask>& mask);  // NOLINT(google-explicit-constructor)
  MaskSource(const BlockMask& mask)                  // NOLINT(google-explicit-constructor)
      : MaskSource(std::optional<BlockMask>(mask)) {}
  /// Sequence i has masks[which[i]], of its own lengths; the rule takes b = i.
  MaskSource(MaskMod rule, std::vector<BlockMask> masks, std::vector<std::int64_t> which);

  bool has_value() const { return rule_.has_value(); }
  /// Only if there is one.
  const MaskMod& mask_mod() const { return *rule_; }
  bool is_per_sequence() const { return per_sequence_; }

  /// Different ones.
  const std::vector<BlockMask>& masks() const { return masks_; }
  /// Which of them is a sequence's.
  std::int64_t mask_of(std::int64_t sequence) const {
    return per_sequence_ ? which_[static_cast<std::size_t>(sequence)] : 0;
  }
  /// Of that mask.
  std::int64_t plane(std::int64_t sequence, std::int64_t h) const;

 private:
  std::optional<MaskMod> rule_;
  std::vector<BlockMask> masks_;
  std::vector<std::int64_t> which_;
  bool per_sequence_ = false;
};

}  // namespace quire::plan
