// A rectangle of a block mask as a mask of its own: some queries and some keys, whose positions are
// then counted from the rectangle's first key. Mask layer.
#pragma once
#include <cstdint>

#include "quire/block_mask.h"
#include "quire/executor.h"

namespace quire::mask {

/// Queries and keys, ends excluded, counted from the mask's first.
struct MaskRectangle {
  std::int64_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;
};

/// The rule as a rule of keys that are counted from key `kv_begin` on.
MaskMod shift_keys(const MaskMod& mod, std::int64_t kv_begin);
ScoreMod shift_keys(const ScoreMod& mod, std::int64_t kv_begin);

/// Its q_begin is the mask's plus the rectangle's; its rule counts keys from kv_begin. Where both
/// ranges begin and end at borders of blocks, lists of blocks are taken over; else the rectangle is
/// proved again. Throws Error as BlockMask::rows.
BlockMask cut_rectangle(const BlockMask& mask, const MaskRectangle& of,
                        Executor* executor = nullptr);

}  // namespace quire::mask
