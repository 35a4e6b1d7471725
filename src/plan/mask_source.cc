// Sequences to masks and planes. Plan layer.
#include "plan/mask_source.h"

#include <utility>

#include "mask/block_rows.h"

namespace quire::plan {

MaskSource::MaskSource(const std::optional<BlockMask>& mask) {
  if (!mask.has_value()) return;
  rule_ = mask->mask_mod();
  masks_.push_back(*mask);
}

MaskSource::MaskSource(MaskMod rule, std::vector<BlockMask> masks, std::vector<std::int64_t> which)
    : rule_(std::move(rule)),
      masks_(std::move(masks)),
      which_(std::move(which)),
      per_sequence_(true) {}

std::int64_t MaskSource::plane(std::int64_t sequence, std::int64_t h) const {
  const BlockMask& mask = masks_[static_cast<std::size_t>(mask_of(sequence))];
  return mask.block_rows().plane(per_sequence_ ? 0 : sequence, h);
}

}  // namespace quire::plan
