// The prefill kernel: many queries per key head. Query tiles that share a sequence of keys walk its
// tiles of 256 keys together, so that each key tile is loaded once for all of them. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/prefill/memory_ahead.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// Lanes [lane_begin, lane_end) of a query tile see these keys.
struct LaneRuns {
  int lane_begin = 0, lane_end = 0;
  KeyRuns visible;
};

/// Up to 64 consecutive queries of one head.
struct QueryTile {
  int64_t b = 0, h = 0, q_idx = 0;       // of the first
  int64_t q_offset = 0, out_offset = 0;  // of the first, elements; the rest at the row steps
  int64_t stat_offset = 0;               // of the first; the rest at stat_step
  int queries = 0;
  const LaneRuns* visible = nullptr;  // covering all queries; null: everything
  int visible_count = 0;
  const KeyList* chosen = nullptr;  // of every query; null: no query made a choice
};

class LastLook;

struct PrefillItem {
  KeySequence keys;
  const QueryTile* tiles = nullptr;
  int tile_count = 0;             // at most kMaxQueryTiles
  MemoryAhead* ahead = nullptr;   // memory of the next item, to prefetch; null: none
  LastLook* last_look = nullptr;  // of the item before in this run; null: none is kept
  bool keys_from_memory = false;  // keys are not in the caches: with few tiles, to prefetch
};

/// The weights that queries of one head gave to keys [key_begin, key_end), whole tiles from the
/// first key of a split on, after a run that kept call.row_max and call.row_sum.
struct KeyWeightsItem {
  PrefillItem queries;
  int64_t key_begin = 0, key_end = 0;
  const uint64_t* counted = nullptr;  // [tile_count]: queries whose weights are summed
  // In compute type, or null:
  void* sums = nullptr;     // [key_end - key_begin][16], added to
  void* entropy = nullptr;  // [tile_count][64]: of these keys, at most a split; replaced
};

/// Query tiles of an item: enough to make the traffic of a key tile cheap, few enough that their
/// queries and outputs stay in an L2 of `l2_bytes` (0: size unknown). With 1 MiB 16 for 64 dims, 8
/// for 128; with 256 KiB 4 and 2; at least 1, and no more for a larger cache.
int query_tiles_per_item(int dims, int value_dims, int64_t l2_bytes);
inline constexpr int kMaxQueryTiles = 16;

/// Scratch a thread needs, aligned to 64 bytes.
std::size_t prefill_scratch_bytes(const ForwardCall& call, int tile_count);

/// Replaces `fault` if a visible element of this item has an earlier one.
void prefill(const ForwardCall& call, const PrefillItem& item, void* scratch,
             TileFault& fault) noexcept;

/// Scratch as of prefill.
void key_weights(const ForwardCall& call, const KeyWeightsItem& item, void* scratch,
                 TileFault& fault) noexcept;

}  // namespace quire::kernels
