// A part of a block mask as a mask of its own: some queries and some keys, whose positions are then
// counted from the first of these keys, or some heads, counted likewise. Mask layer.
#pragma once
#include <cstdint>

#include "quire/block_mask.h"
#include "quire/executor.h"

namespace quire::mask {

/// Queries and keys, ends excluded, counted from the mask's first.
struct MaskRectangle {
  std::int64_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;
};

/// The rule rewritten for keys that are counted from key `kv_begin`.
MaskMod shift_keys(const MaskMod& mod, std::int64_t kv_begin);
ScoreMod shift_keys(const ScoreMod& mod, std::int64_t kv_begin);
/// The same for heads.
MaskMod shift_heads(const MaskMod& mod, std::int64_t h_begin);
ScoreMod shift_heads(const ScoreMod& mod, std::int64_t h_begin);

/// Its q_begin is the mask's plus the rectangle's; its rule counts keys from kv_begin. If both
/// ranges begin and end at block boundaries, the blocks are copied; otherwise the rectangle is
/// proved again. Throws Error as BlockMask::rows.
BlockMask cut_rectangle(const BlockMask& mask, const MaskRectangle& of,
                        Executor* executor = nullptr);

/// Heads [h_begin, h_end). Of a mask with one head for all, only its rule changes.
BlockMask cut_heads(const BlockMask& mask, std::int64_t h_begin, std::int64_t h_end);

}  // namespace quire::mask
