// The backward kernel: the gradients to which one chunk of keys of one key head contributes. Scores
// are recomputed by the forward's own primitives. The gradients of the chunk's keys and values are
// summed in scratch over all query tiles that see them; what the chunk adds to the gradients of
// queries goes to their rows in turn, chunk after chunk. Kernels layer.
//
// Order of arithmetic, for f32 calls (f64 the same): scores as in attention_order.h, times scale
// and through the mod, in either form; P = exp2((t - lse) * log2e), so that a row that sees one key
// has P = 1 whatever its score. dP = the sum of v * d_out over d, in the chains of a score; delta =
// the same sum of out * d_out, minus d_lse: where a row sees one key, out is its v, and both are
// equal. D = P * (dP - delta), dS = D, with a score mod D * slope. dV and dK: chains of
// kChainQueries queries of a tile of 64, ascending, from 0; those of a head are added up from 0,
// ascending within a tile, tiles descending; then the sums of heads, those of the group ascending,
// batch entries that share keys ascending; dK is multiplied by scale at the end. dQ: one chain over
// the keys of a tile (kBackwardTileKeys counted from key 0, with dropout kDropoutKeys, at most a
// chunk), ascending, from 0; the chains of a chunk are added up from 0, and the sums of chunks
// times scale are added up from 0 by fma, ascending. Hidden elements are skipped or multiplied by
// 0.
//
// Weights by a formula: P = W or W * (1 / l), one product; D = dP - delta, or (1 / l) * (dP -
// delta); dS = D * slope.
//
// Sinks: with an lse of the keys alone, P is theirs alone as well, d_out is multiplied by what they
// weigh, w, when it is read, and delta = w * (out . d_out) - d_lse. With lse_with_sinks all is as
// without sinks. A sink's gradient: what its rows add, ascending within a query tile, then the sums
// of tiles in f64, batch entries and tiles ascending.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/backward/functions.h"
#include "kernels/backward/gradient_runner.h"
#include "kernels/backward/memory.h"
#include "kernels/backward/problem.h"
#include "kernels/prefill/row_prefetch.h"
#include "kernels/prefill/tile_activity.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {

/// Keys of a chunk: a multiple of every tile size, so few that their sums in scratch stay in L2. A
/// constant of the order of arithmetic, like the splits of the forward: 384 for dims up to 256
/// together, 192 up to 512, else 64.
int backward_chunk_keys(int dims, int value_dims);

/// The most keys of a tile: their P and dS fit L1. A constant of the order of arithmetic too: it is
/// the length of the chains of dQ.
inline constexpr int kBackwardTileKeys = 96;

/// Scratch a thread needs, aligned to 64 bytes.
std::size_t backward_scratch_bytes(const BackwardCall& call);

/// Keys of a sequence.
struct ChunkPlace {
  int64_t begin = 0;
  int count = 0;
};

/// Rows of a chunk, counted from its first key.
struct ChunkRows {
  int first = 0, count = 0;
};

template <class T>
class BackwardChunk {
 public:
  /// `keys`: spans of the sequence that cover the chunk, which is [place.begin, + place.count).
  /// `gradient`: a runner of call.gradient, between begin_head and end_head whenever tiles are
  /// added; null without one.
  BackwardChunk(const BackwardCall& call, std::span<const KeySpan> keys, const ChunkPlace& place,
                GradientRunner* gradient, void* scratch);

  /// Adds a query tile that may see something of the chunk.
  void add(const BackwardTile& tile) noexcept;
  /// After the last tile: the gradients of keys and values are complete.
  void finish() noexcept;
  /// After finish: writes these rows to their tensors, the first row at these offsets.
  void write(const ChunkRows& rows, int64_t d_k_offset, int64_t d_v_offset) noexcept;
  /// Instead of write: adds the rows to sums in compute type, contiguous rows of whole panels.
  void add_to(const ChunkRows& rows, T* d_k, T* d_v) noexcept;
  /// Replaces `fault` if the mask program has an earlier one.
  void report(TileFault& fault) const noexcept;

 private:
  struct Block {
    GroupActivity of;
    BlockShape shape;
  };

  void load_keys(const KeySpan& span) noexcept;
  void begin_head(const QueryTile& at) noexcept;
  void add_to_sums() noexcept;
  void find_spoiled_keys() noexcept;
  void load_queries() noexcept;
  void scale_d_out(const T* share) noexcept;
  void bring_next() noexcept;
  uint64_t load_rows(const RowsView& from, T* rows, ptrdiff_t step) noexcept;
  void run_tile(int first, int rows) noexcept;
  TileActivity look(int first, int rows) noexcept;
  void list_blocks(const TileActivity& activity) noexcept;
  void begin_mod(int first, int rows) noexcept;
  void weigh(const Block& block, int first) noexcept;
  void differentiate(const Block& block, int first) noexcept;
  void differentiate_mod(const Block& block) noexcept;
  void drop(const Block& block, int first, T* values) noexcept;
  void add_values(const Block& block, int first) noexcept;
  void add_keys(const Block& block, int first) noexcept;
  void add_queries(int first) noexcept;
  bool has_spoiled_keys(int first, int rows) const noexcept;

  const BackwardCall& call_;
  const ForwardCall& forward_;
  const ForwardFunctions<T>& functions_;
  const BackwardFunctions<T>& backward_;
  GradientRunner* gradient_;
  BackwardMemory<T> memory_;
  PairScope scope_;
  int64_t begin_;
  int count_;
  T scale_;
  bool wants_modified_;      // gradients of modified scores are needed as such
  DropoutRule dropout_;      // if call.forward.dropout.p > 0
  int64_t b_ = -1, h_ = -1;  // the current head
  bool has_sums_ = false;    // there are sums of earlier heads
  // Of the current tile:
  const BackwardTile* tile_ = nullptr;
  bool loaded_ = false;
  RowPrefetch next_q_, next_d_out_;             // rows of the tile before it, usually the next one
  uint64_t spoiled_q_ = 0, spoiled_d_out_ = 0;  // lanes whose rows are not finite
  bool is_full_ = false;                        // everything is visible: there are no words
  bool spoiled_tile_ = false;                   // holds a key or value that is not finite
  Block blocks_[kKeyGroups];
  int block_count_ = 0;
};

}  // namespace quire::kernels
