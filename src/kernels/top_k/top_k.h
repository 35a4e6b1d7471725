// The kernel of top_k_keys: for some queries and a range of keys, the k keys with the largest sums
// over the indexer's heads of weight * relu(query . key). Tiles of keys stream by, keys across the
// lanes; per query only the best candidates are kept. Kernels layer.
//
// Order of arithmetic, of one sum: scores of the heads as in attention_order.h, without a scale;
// fma of weight, relu(score) and the sum, heads ascending, from +0. Computed in f32, f64 if an
// input is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/prefill/prefill.h"
#include "kernels/tile/tile_program.h"
#include "kernels/tile/tile_runner.h"
#include "kernels/top_k/top_list.h"

namespace quire::kernels {

/// A tensor of heads of rows: its steps, in elements.
struct TopKTensor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  ptrdiff_t batch_step = 0, row_step = 0, head_step = 0, column_step = 0;
};

struct TopKCall {
  const KernelTable* table = nullptr;
  TopKTensor q;        // [batch, rows, heads, dims]
  TopKTensor k;        // [batch, rows, dims]
  TopKTensor weights;  // [batch, rows, heads]
  int heads = 0, dims = 0;
  int64_t top_k = 0;  // places of a list of keys
  int64_t kept = 0;   // how many of them can be filled
  bool f64 = false;
  const TileProgram* mask = nullptr;  // queries across the lanes
};

struct TopKItem {
  QueryTile tile;         // b, q_idx, queries, visible; h is 0, offsets are not used
  int64_t first_row = 0;  // of its queries in the tensors
  int64_t key_begin = 0, key_end = 0;
  // Where each query's keys go, one of the two:
  int32_t* keys = nullptr;  // [queries][top_k], ascending, -1 after the last
  // Candidates of a range of keys, in no order, and how many there are: [queries][range_step][kept]
  // and [queries][range_step]; both point to this item's range.
  void* candidates = nullptr;
  int64_t* counts = nullptr;
  int64_t range_step = 1;
};

std::size_t top_k_scratch_bytes(const TopKCall& call, int queries);
/// Bytes of one candidate.
std::size_t candidate_bytes(bool f64);

void top_k(const TopKCall& call, const TopKItem& item, void* scratch, TileFault& fault) noexcept;

/// For one query: writes the best candidates of several ranges to its keys. candidates:
/// [ranges][kept], of which counts[range] are set; they are overwritten.
void merge_top_k(const TopKCall& call, void* candidates, const int64_t* counts, int64_t ranges,
                 int32_t* keys) noexcept;

}  // namespace quire::kernels
