// Tiles of 64 keys against the rows of all queries and heads, 256 rows at a time. No SIMD. Kernels
// layer.
#include "kernels/top_k/top_k.h"

#include <algorithm>

#include "kernels/kernel_table.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/prefill/tile_visibility.h"
#include "kernels/scratch_layout.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

constexpr int kKeysAtOnce = kQueryTile;  // lanes
constexpr int kRowsAtOnce = kTileKeys;

const char* element_at(const TopKTensor& tensor, int64_t offset) {
  return static_cast<const char*>(tensor.data) +
         offset * static_cast<int64_t>(dtype_size(tensor.dtype));
}

// A query's best keys, ascending.
template <class T>
void write_keys(Candidate<T>* found, int64_t count, int64_t top_k, int32_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = found[i].key;
  std::sort(to, to + count);
  std::fill(to + count, to + top_k, -1);
}

template <class T>
class TopKRun {
 public:
  TopKRun(const TopKCall& call, int queries, ScratchLayout& layout)
      : call_(call),
        visibility_(call.mask, call.f64 ? *call.table->tile_f64 : *call.table->tile_f32, layout),
        functions_(forward_functions<T>(*call.table)),
        rows_(layout.take<T>(static_cast<size_t>(queries) * static_cast<size_t>(call.heads) *
                             static_cast<size_t>(call.dims))),
        weights_(layout.take<T>(static_cast<size_t>(queries) * static_cast<size_t>(call.heads))),
        keys_(layout.take<T>(static_cast<size_t>(call.dims) * kKeysAtOnce)),
        scores_(layout.take<T>(kQueryPanels * kScorePanelStep)),
        sums_(layout.take<T>(static_cast<size_t>(queries) * kKeysAtOnce)),
        words_(layout.take<uint64_t>(kTileKeys)),
        candidates_(layout.take<Candidate<T>>(static_cast<size_t>(queries) *
                                              static_cast<size_t>(top_list_size(call.kept)))) {}

  void run(const TopKItem& item, TileFault& fault) noexcept {
    const int queries = item.tile.queries;
    load_rows(item);
    for (int q = 0; q < queries; ++q)
      lists_[q] = TopList<T>(candidates_ + q * top_list_size(call_.kept), call_.kept);
    for (int64_t key = item.key_begin; key < item.key_end; key += kKeysAtOnce) {
      const int keys = static_cast<int>(std::min<int64_t>(kKeysAtOnce, item.key_end - key));
      const TileActivity activity = visibility_.look(item.tile, key, keys, words_);
      if (!activity.any) continue;
      if (activity.full) std::fill_n(words_, keys, ~uint64_t{0});
      add_sums(item, key, keys);
      for (int q = 0; q < queries; ++q) add_candidates(lists_[q], q, key, keys);
    }
    for (int q = 0; q < queries; ++q) finish(item, q, lists_[q]);
    if (visibility_.fault() != nullptr && visibility_.fault()->before(fault))
      fault = *visibility_.fault();
  }

 private:
  // Queries and weights in compute type, heads of a query one after the other.
  void load_rows(const TopKItem& item) noexcept {
    for (int q = 0; q < item.tile.queries; ++q) {
      const int64_t row = item.first_row + q;
      const TopKTensor &from = call_.q, &w = call_.weights;
      functions_.copy_rows(
          {.from = {.data = element_at(from, item.tile.b * from.batch_step + row * from.row_step),
                    .dtype = from.dtype,
                    .row_step = from.head_step,
                    .column_step = from.column_step,
                    .rows = call_.heads,
                    .columns = call_.dims},
           .out = rows_ + static_cast<ptrdiff_t>(q) * call_.heads * call_.dims,
           .out_step = call_.dims,
           .out_columns = call_.dims});
      functions_.copy_rows(
          {.from = {.data = element_at(w, item.tile.b * w.batch_step + row * w.row_step),
                    .dtype = w.dtype,
                    .row_step = w.head_step,
                    .rows = call_.heads,
                    .columns = 1},
           .out = weights_ + static_cast<ptrdiff_t>(q) * call_.heads,
           .out_step = 1,
           .out_columns = 1});
    }
  }

  // Sums of all queries over their heads, for the keys of a tile.
  void add_sums(const TopKItem& item, int64_t key, int keys) noexcept {
    const TopKTensor& k = call_.k;
    const int panels = (keys + kPanel - 1) / kPanel, heads = call_.heads;
    functions_.load_queries(
        {.from = {.data = element_at(k, item.tile.b * k.batch_step + key * k.row_step),
                  .dtype = k.dtype,
                  .row_step = k.row_step,
                  .column_step = k.column_step,
                  .rows = keys,
                  .columns = call_.dims},
         .panels = panels,
         .out = keys_});
    const int rows = item.tile.queries * heads;
    std::fill_n(sums_, static_cast<size_t>(item.tile.queries) * kKeysAtOnce, T{0});
    for (int first = 0; first < rows; first += kRowsAtOnce) {
      const int end = std::min(rows, first + kRowsAtOnce);
      functions_.scores({.keys = rows_ + static_cast<ptrdiff_t>(first) * call_.dims,
                         .key_step = call_.dims,
                         .rows = end - first,
                         .dims = call_.dims,
                         .panels = panels,
                         .queries = keys_,
                         .scores = scores_});
      for (int row = first; row < end;) {
        const int q = row / heads, stop = std::min(end, (q + 1) * heads);
        functions_.weigh_heads({.scores = scores_ + ptrdiff_t{row - first} * kPanel,
                                .rows = stop - row,
                                .panels = panels,
                                .weights = weights_ + row,
                                .sums = sums_ + static_cast<ptrdiff_t>(q) * kKeysAtOnce});
        row = stop;
      }
    }
  }

  void add_candidates(TopList<T>& list, int q, int64_t key, int keys) noexcept {
    const T* const sums = sums_ + static_cast<ptrdiff_t>(q) * kKeysAtOnce;
    for (int i = 0; i < keys; ++i)
      if (sums[i] >= list.least() && (words_[i] >> q & 1) != 0)
        list.add(sums[i], static_cast<int32_t>(key + i));
  }

  void finish(const TopKItem& item, int q, TopList<T>& list) noexcept {
    Candidate<T>* const found = candidates_ + q * top_list_size(call_.kept);
    const int64_t count = list.finish();
    if (item.keys != nullptr) {
      write_keys(found, count, call_.top_k, item.keys + q * call_.top_k);
      return;
    }
    std::copy_n(found, count,
                static_cast<Candidate<T>*>(item.candidates) + q * item.range_step * call_.kept);
    item.counts[q * item.range_step] = count;
  }

  const TopKCall& call_;
  TileVisibility visibility_;
  const ForwardFunctions<T>& functions_;
  T *rows_, *weights_;  // [queries][heads][dims], [queries][heads]
  T* keys_;             // [dims][64]
  T *scores_, *sums_;   // [4][kScorePanelStep], [queries][64]
  uint64_t* words_;     // [256]
  Candidate<T>* candidates_;
  TopList<T> lists_[kQueryTile];
};

template <class T>
void merge(const TopKCall& call, void* memory, const int64_t* counts, int64_t ranges,
           int32_t* keys) {
  auto* const all = static_cast<Candidate<T>*>(memory);
  int64_t count = 0;
  for (int64_t range = 0; range < ranges; ++range) {
    std::copy_n(all + range * call.kept, counts[range], all + count);
    count += counts[range];
  }
  if (count > call.kept) {
    std::nth_element(all, all + call.kept, all + count);
    count = call.kept;
  }
  write_keys(all, count, call.top_k, keys);
}

template <class T>
std::size_t scratch_bytes(const TopKCall& call, int queries) {
  ScratchLayout layout(nullptr);
  TopKRun<T>(call, queries, layout);
  return layout.bytes();
}

template <class T>
void run(const TopKCall& call, const TopKItem& item, void* scratch, TileFault& fault) {
  ScratchLayout layout(scratch);
  TopKRun<T>(call, item.tile.queries, layout).run(item, fault);
}

}  // namespace

std::size_t top_k_scratch_bytes(const TopKCall& call, int queries) {
  return call.f64 ? scratch_bytes<double>(call, queries) : scratch_bytes<float>(call, queries);
}

std::size_t candidate_bytes(bool f64) {
  return f64 ? sizeof(Candidate<double>) : sizeof(Candidate<float>);
}

void top_k(const TopKCall& call, const TopKItem& item, void* scratch, TileFault& fault) noexcept {
  call.f64 ? run<double>(call, item, scratch, fault) : run<float>(call, item, scratch, fault);
}

void merge_top_k(const TopKCall& call, void* candidates, const int64_t* counts, int64_t ranges,
                 int32_t* keys) noexcept {
  if (call.f64)
    merge<double>(call, candidates, counts, ranges, keys);
  else
    merge<float>(call, candidates, counts, ranges, keys);
}

}  // namespace quire::kernels
