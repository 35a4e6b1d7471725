// Plain loops; std::fma is exact on all ISAs. Kernels layer.
#include "kernels/backward/spoiled.h"

#include <algorithm>
#include <cmath>

namespace quire::kernels {
namespace {

constexpr int kColumnsAtOnce = 256;  // of a chain on the stack; head dims may be any

template <class T>
void add_row(T weight, const T* row, int columns, T* out) {
  if (weight == 0) return;
  for (int c = 0; c < columns; ++c) out[c] = std::fma(weight, row[c], out[c]);
}

}  // namespace

template <class T>
void add_to_keys_weighted(const AddToKeysArgs<T>& args) noexcept {
  T chain[kColumnsAtOnce];
  for (int key = 0; key < args.keys; ++key) {
    for (int first = 0; first < args.columns; first += kColumnsAtOnce) {
      const int columns = std::min(kColumnsAtOnce, args.columns - first);
      T* const out = args.out + key * args.out_step + first;
      std::fill_n(chain, columns, T(0));
      for (int lane = 0; lane < args.panels * kPanel; ++lane) {
        const T weight =
            args.weights[lane / kPanel * kScorePanelStep + ptrdiff_t{key} * kPanel + lane % kPanel];
        add_row(weight, args.rows + lane * args.row_step + first, columns, chain);
        const int next = args.first_panel * kPanel + lane + 1;
        if (next % kChainQueries != 0 && lane + 1 != args.panels * kPanel) continue;
        for (int c = 0; c < columns; ++c) out[c] += chain[c];
        std::fill_n(chain, columns, T(0));
      }
    }
  }
}

template <class T>
void add_to_queries_weighted(const AddToQueriesArgs<T>& args) noexcept {
  T chain[kColumnsAtOnce];
  for (int query = 0; query < args.queries; ++query) {
    for (int first = 0; first < args.columns; first += kColumnsAtOnce) {
      const int columns = std::min(kColumnsAtOnce, args.columns - first);
      std::fill_n(chain, columns, T(0));
      for (const ChainRun* run = args.runs; run != args.runs + args.run_count; ++run)
        for (int i = 0; i < run->rows; ++i)
          add_row(args.weights[ptrdiff_t{run->weight_row + i} * kPanel + query],
                  args.rows + (run->value_row + i) * args.row_step + first, columns, chain);
      T* const out = args.out + query * args.out_step + first;
      for (int c = 0; c < columns; ++c) out[c] += chain[c];
    }
  }
}

template void add_to_keys_weighted(const AddToKeysArgs<float>&) noexcept;
template void add_to_keys_weighted(const AddToKeysArgs<double>&) noexcept;
template void add_to_queries_weighted(const AddToQueriesArgs<float>&) noexcept;
template void add_to_queries_weighted(const AddToQueriesArgs<double>&) noexcept;

}  // namespace quire::kernels
