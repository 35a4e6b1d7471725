// The decode kernel: few query rows per key head (up to most_decode_rows, all heads of its group
// and a few queries each), keys across the lanes, memory read once for all rows. Long sequences can
// be cut at splits over several items, whose states are folded in order afterwards. Same bits as
// the prefill kernel. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_order.h"
#include "kernels/decode/functions.h"
#include "kernels/forward_problem.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// The most rows of an item of this call: kManyDecodeRows if its keys and values are multiplied in
/// f32 or as pairs from where they lie, or gathered, and the ISA has vectors; else kDecodeRows.
/// choose_kernel (plan/) decides which calls decode.
int most_decode_rows(const ForwardCall& call);

/// Keys before the item's own: tiles that its rows have already walked together with others.
struct DecodePrefix {
  /// [split][row], as the `states` of the item that walked them, from this item's first row on;
  /// null: there is no prefix.
  const void* states = nullptr;
  int64_t step = 0;   // elements from split to split
  int64_t tiles = 0;  // a split that ends after the prefix continues from its state
};

struct DecodeItem {
  KeySequence keys;
  /// Rows of query heads that share one key head, of one sequence or of several that share all
  /// these keys (programs then take b from a list).
  const QueryRow* rows = nullptr;
  int row_count = 0;
  /// Splits [split_begin, split_end) of kSplitKeys keys each. With states == nullptr these are all
  /// splits of the sequence, or all that do not lie entirely in the prefix, and outputs are
  /// written.
  int64_t split_begin = 0, split_end = 0;
  /// Otherwise one state per split is written here, [split - split_begin][row], decode_state_size
  /// elements of compute type each, for merge_splits. Aligned as T.
  void* states = nullptr;
  DecodePrefix prefix = {};
};

/// The most rows that queries of a ChosenItem have together, padding included: with their keys,
/// states and queries of 128 numbers each take 192 KiB of L2.
inline constexpr int kMostChosenRows = 128;
/// How many queries of `row_count` rows that are.
constexpr int most_chosen_queries(int row_count) {
  return kMostChosenRows / static_cast<int>(padded_rows(row_count));
}

/// Queries that chose their keys among those of one key head. They take turns at every few tiles
/// of keys, which then stay in L2 for all of them.
struct ChosenItem {
  KeySequence keys;
  const QueryRow* rows = nullptr;  // [query][row_count], heads that decode together
  int queries = 0;                 // up to most_chosen_queries
  int row_count = 0;               // of each
  int64_t l2_bytes = 0;            // of this CPU
};

/// Elements of one state of one row.
int64_t decode_state_size(int value_dims);

/// Scratch a thread needs for items of up to `row_count` rows and their merge, aligned to 64 bytes.
std::size_t decode_scratch_bytes(const ForwardCall& call, int row_count);

/// Replaces `fault` if a visible element of this item has an earlier one.
void decode(const ForwardCall& call, const DecodeItem& item, void* scratch,
            TileFault& fault) noexcept;

/// The same for chosen keys.
std::size_t chosen_scratch_bytes(const ForwardCall& call);
void decode_chosen(const ForwardCall& call, const ChosenItem& item, void* scratch,
                   TileFault& fault) noexcept;

/// The states that items wrote for some rows: [split][row], `step` elements from split to split.
struct SplitStates {
  const void* data = nullptr;
  int64_t splits = 0, step = 0;
};

/// Folds the states of all splits of an item's rows in order and writes the outputs. The rows may
/// be some of those that were computed together. The splits and states of `item` are not used.
void merge_splits(const ForwardCall& call, const DecodeItem& item, const SplitStates& states,
                  void* scratch, TileFault& fault) noexcept;

}  // namespace quire::kernels
