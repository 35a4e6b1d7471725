// Block masks for sequences of different lengths under one mask mod, in which b is the index of the
// sequence. One prover serves all; equal masks are proved once. Mask layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quire/block_mask.h"

namespace quire::mask {

/// Sequence i has masks[which[i]].
struct SequenceMasks {
  std::vector<BlockMask> masks;
  std::vector<std::int64_t> which;
};

/// The sequences of a batch, one entry each. q_begin: q_idx of their first queries; empty: 0.
struct SequenceLengths {
  std::span<const std::int64_t> q, kv, q_begin = {};
};

/// Each mask is [1, heads, q_len, kv_len]; its mask mod is the rule or, if that reads b, the rule
/// with the sequence's index in place of b. Errors begin with "[where]"; faults name the sequence
/// as b. Of the options, q_begin, max_bytes and report are ignored.
SequenceMasks create_sequence_masks(const char* where, const MaskMod& rule, std::int64_t heads,
                                    const SequenceLengths& lengths,
                                    const BlockMaskOptions& options);

}  // namespace quire::mask
