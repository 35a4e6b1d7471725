// The decode kernel: few query rows per key head (up to kDecodeRows, all heads of its group and a
// few queries each), keys across the lanes, memory read once for all rows. Long sequences can be
// cut at splits over several items, whose states are folded in order afterwards. Same bits as the
// prefill kernel. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/decode/functions.h"
#include "kernels/forward_problem.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// What came before the item's own keys: tiles that its rows have walked together with others.
struct DecodePrefix {
  /// [split][row], as `states` of the item that walked them, of this item's first row; null: none.
  const void* states = nullptr;
  int64_t step = 0;   // elements from split to split
  int64_t tiles = 0;  // a split that is not whole goes on from its state
};

struct DecodeItem {
  KeySequence keys;
  /// Heads of one key head; of one sequence, or of several that share all these keys (programs take
  /// b from a list then).
  const QueryRow* rows = nullptr;
  int row_count = 0;
  /// Splits [split_begin, split_end) of kSplitKeys keys each. With states == nullptr all of the
  /// sequence's, or all that are not whole in the prefix: outputs are written.
  int64_t split_begin = 0, split_end = 0;
  /// Else: one state per split, [split - split_begin][row], decode_state_size elements of compute
  /// type each, for merge_splits. Aligned as T.
  void* states = nullptr;
  DecodePrefix prefix = {};
};

/// Elements of one state of one row.
int64_t decode_state_size(int value_dims);

/// Scratch a thread needs for items of up to `row_count` rows and their merge, aligned to 64 bytes.
std::size_t decode_scratch_bytes(const ForwardCall& call, int row_count);

/// `fault` is replaced by an earlier one if a visible element does something wrong.
void decode(const ForwardCall& call, const DecodeItem& item, void* scratch,
            TileFault& fault) noexcept;

/// The states of all splits of an item's rows, folded in order, to outputs. states: [split][row].
/// Of `item`, the splits and its own states do not matter.
void merge_splits(const ForwardCall& call, const DecodeItem& item, const void* states,
                  int64_t splits, void* scratch, TileFault& fault) noexcept;

}  // namespace quire::kernels
