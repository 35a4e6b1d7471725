// Products of a block: weights [key][16 queries] with rows of keys, or transposed, [query][16
// keys], with rows of queries. No SIMD of its own. Kernels layer.
#include "kernels/backward/gradient_products.h"

#include <algorithm>
#include <cmath>

namespace quire::kernels {
namespace {

template <class T>
constexpr T kOnes[kPanel] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

template <class T, class E>
bool widen(const TileBuffer& buffer, int64_t offset, int64_t width, T* to) {
  const E* const from = static_cast<const E*>(buffer.data) + offset;
  bool finite = true;
  for (int64_t t = 0; t < width; ++t) {
    to[t] = static_cast<T>(from[t]);
    finite = finite && std::isfinite(to[t]);
  }
  return finite;
}

template <class T>
struct Product {
  const GradientTile& tile;
  const GradientBlock& block;
  const SiteSums& sums;
  const T* weights;  // [panel][panel_step], rows of 16
  int64_t panel_step;

  T* out(int64_t entry) const { return static_cast<T*>(sums.sums) + entry * sums.columns; }
  const T* other(int64_t entry) const {
    return static_cast<const T*>(sums.others) + entry * sums.columns;
  }
  bool is_wild(int64_t first, int64_t last) const {
    return std::any_of(sums.other_rows + first, sums.other_rows + last,
                       [](OtherRow row) { return row == OtherRow::kWild; });
  }
};

// Rows with an inf or NaN, element by element: a weight of 0 adds nothing.
template <class T>
void add_slowly(const Product<T>& with) {
  const bool by_key = with.tile.site.pattern == GradientPattern::kDotLane;
  for (int panel = with.block.panel_begin; panel < with.block.panel_end; ++panel) {
    for (int row = with.block.row_begin; row < with.block.row_end; ++row) {
      const T* const weights = with.weights + panel * with.panel_step + row * kPanel;
      for (int j = 0; j < kPanel; ++j) {
        if (weights[j] == 0) continue;
        const int64_t lane = panel * kPanel + j, key = with.tile.key + row;
        T* const to = with.out(by_key ? with.tile.query + lane : key);
        const T* const from = with.other(by_key ? key : lane);
        for (int64_t t = 0; t < with.tile.site.width; ++t) to[t] += weights[j] * from[t];
      }
    }
  }
}

template <class T>
AccumulateArgs<T> accumulate_args(const Product<T>& with, const ChainRun& chain) {
  AccumulateArgs<T> args;
  args.runs = &chain;
  args.run_count = 1;
  args.value_step = args.out_step = with.sums.columns;
  args.columns = static_cast<int>(with.sums.columns);
  args.factor = kOnes<T>;
  return args;
}

template <class T>
void add_to_queries(const Product<T>& with, const ForwardFunctions<T>& functions) {
  const ChainRun chain{0, 0, with.block.row_end - with.block.row_begin};
  AccumulateArgs<T> args = accumulate_args(with, chain);
  args.values = with.other(with.tile.key + with.block.row_begin);
  args.queries = kPanel;
  for (int panel = with.block.panel_begin; panel < with.block.panel_end; ++panel) {
    args.weights = with.weights + panel * with.panel_step + with.block.row_begin * kPanel;
    args.out = with.out(with.tile.query + panel * kPanel);
    functions.accumulate(args);
  }
}

// 16 keys at a time, with their weights transposed.
template <class T>
void add_to_keys(const Product<T>& with, T* turned, const ForwardFunctions<T>& functions) {
  const ChainRun chain{0, 0, (with.block.panel_end - with.block.panel_begin) * kPanel};
  AccumulateArgs<T> args = accumulate_args(with, chain);
  args.weights = turned;
  args.values = with.other(with.block.panel_begin * kPanel);
  for (int row = with.block.row_begin; row < with.block.row_end; row += kPanel) {
    args.queries = std::min(kPanel, with.block.row_end - row);
    T* to = turned;
    for (int panel = with.block.panel_begin; panel < with.block.panel_end; ++panel) {
      const T* const from = with.weights + panel * with.panel_step + row * kPanel;
      for (int j = 0; j < kPanel; ++j, to += kPanel)
        for (int r = 0; r < kPanel; ++r) to[r] = r < args.queries ? from[r * kPanel + j] : T{0};
    }
    args.out = with.out(with.tile.key + row);
    functions.accumulate(args);
  }
}

}  // namespace

template <class T>
OtherRow load_other_row(const TileBuffer& buffer, int64_t offset, int64_t width, T* to) noexcept {
  bool finite = true;
  const bool together = buffer.trailing_offsets == nullptr && buffer.trailing_step == 1;
  if (together && buffer.dtype == DType::f32) {
    finite = widen<T, float>(buffer, offset, width, to);
  } else if (together && buffer.dtype == DType::f64) {
    finite = widen<T, double>(buffer, offset, width, to);
  } else {
    for (int64_t t = 0; t < width; ++t) {
      to[t] = buffer_element<T>(buffer, offset + trailing_offset_of(buffer, t));
      finite = finite && std::isfinite(to[t]);
    }
  }
  return finite ? OtherRow::kFinite : OtherRow::kWild;
}

template <class T>
void add_products(const GradientTile& tile, const GradientBlock& block, const SiteSums& sums,
                  const GradientMemory& memory, const ForwardFunctions<T>& functions) noexcept {
  T* const weights = static_cast<T*>(memory.weights);
  const Product<T> with{tile, block, sums, weights, memory.weights_panel};
  store_weights(tile, block, weights, memory.weights_panel);
  const bool by_key = tile.site.pattern == GradientPattern::kDotLane;
  const bool wild = by_key ? with.is_wild(tile.key + block.row_begin, tile.key + block.row_end)
                           : with.is_wild(0, tile.lanes);
  if (wild) return add_slowly(with);
  if (by_key) return add_to_queries(with, functions);
  add_to_keys(with, static_cast<T*>(memory.turned), functions);
}

template OtherRow load_other_row(const TileBuffer&, int64_t, int64_t, float*) noexcept;
template OtherRow load_other_row(const TileBuffer&, int64_t, int64_t, double*) noexcept;
template void add_products(const GradientTile&, const GradientBlock&, const SiteSums&,
                           const GradientMemory&, const ForwardFunctions<float>&) noexcept;
template void add_products(const GradientTile&, const GradientBlock&, const SiteSums&,
                           const GradientMemory&, const ForwardFunctions<double>&) noexcept;

}  // namespace quire::kernels
