// Maps sequences to masks and planes. Mask layer.
#include "quire/block_masks.h"

#include "mask/block_rows.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

const BlockMask& JaggedBlockMask::operator[](std::int64_t sequence) const {
  if (sequence < 0 || sequence >= sequences()) {
    fail(ErrorKind::index, "JaggedBlockMask", "sequence {} is outside a batch of {}", sequence,
         sequences());
  }
  return masks()[which()[sequence]];
}

std::span<const BlockMask> BlockMasks::masks() const {
  if (each_.has_value()) return each_->masks();
  if (one_.has_value()) return {&*one_, 1};
  return {};
}

std::int64_t BlockMasks::mask_of(std::int64_t sequence) const {
  return each_.has_value() ? each_->which()[sequence] : 0;
}

std::int64_t BlockMasks::plane(std::int64_t sequence, std::int64_t h) const {
  const BlockMask& mask = masks()[mask_of(sequence)];
  return mask.block_rows().plane(each_.has_value() ? 0 : sequence, h);
}

}  // namespace quire
