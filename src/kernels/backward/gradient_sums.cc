// Loops over the elements of a tile, one per pattern. No SIMD of its own. Kernels layer.
#include "kernels/backward/gradient_sums.h"

#include <algorithm>

#include "kernels/prefill/forward_functions.h"
#include "tensor/element.h"

namespace quire::kernels {
namespace {

constexpr int kBlockRows = 16;

template <class T>
const T* block_row(const GradientBlock& block, int panel, int row) {
  return reinterpret_cast<const T*>(static_cast<const char*>(block.d_modified.data) +
                                    panel * block.d_modified.panel_step +
                                    row * block.d_modified.row_step);
}

// An output of the tile program by rows: kept values lie at equal steps.
struct Rows {
  const char* first;
  ptrdiff_t step;
  Rows(const TileRunner& runner, const TileOperand& output)
      : first(runner.row_of(output, 0)), step(output.row_step) {}
  const char* operator[](int row) const { return first + row * step; }
};

// d_modified * factor of 16 lanes. An element with d_modified = 0 gives 0: its factor may be NaN.
template <class T>
struct Products {
  const GradientBlock& block;
  const bool has_factor, broadcast;
  const Rows factors;

  Products(const GradientTile& tile, const GradientBlock& of)
      : block(of),
        has_factor(tile.site.has_factor),
        broadcast(tile.site.factor.broadcast),
        factors(tile.runner, tile.site.factor) {}

  void load(int row, int panel, T (&to)[kPanel]) const {
    const T* const from = block_row<T>(block, panel, row);
    if (!has_factor) {
      for (int j = 0; j < kPanel; ++j) to[j] = from[j];
      return;
    }
    const T* factor = reinterpret_cast<const T*>(factors[row]);
    if (broadcast) {
      const T f = *factor;
      for (int j = 0; j < kPanel; ++j) {
        const T product = from[j] * f;
        to[j] = from[j] == 0 ? T{0} : product;
      }
      return;
    }
    factor += panel * kPanel;
    for (int j = 0; j < kPanel; ++j) {
      const T product = from[j] * factor[j];
      to[j] = from[j] == 0 ? T{0} : product;
    }
  }
};

template <class T, class Index>
void gather_row(const GradientTile& tile, const TargetCopy& to, int panel, const T (&from)[kPanel],
                const Index* indices) {
  T* const copy = static_cast<T*>(to.copy);
  const int lanes = std::min(kPanel, tile.lanes - panel * kPanel);
  if (to.copies > 1) {
    for (int j = 0; j < lanes; ++j) copy[(j & 3) * to.step + indices[j]] += from[j];
    return;
  }
  for (int j = 0; j < lanes; ++j) {
    copy[indices[j]] += from[j];
    to.touched[indices[j] / kTouchedLine] = 1;
  }
}

// Several elements per index: a sum adds the same to all, a dot multiplies by the other side's.
template <class T>
void gather_wide(const GradientTile& tile, const TargetCopy& to, const TileBuffer* other, int row,
                 int panel, const T (&from)[kPanel]) {
  T* const copy = static_cast<T*>(to.copy);
  const GradientSite& site = tile.site;
  const char* const indices = tile.runner.row_of(site.index, row);
  const char* const offsets =
      other == nullptr ? nullptr : tile.runner.row_of(site.other_offset, row);
  for (int j = 0; j < kPanel; ++j) {
    if (from[j] == 0) continue;
    const int lane = panel * kPanel + j;
    const int64_t first = integer_at(site.index, indices, lane) * site.width;
    for (int64_t t = 0; t < site.width; ++t) {
      T value = from[j];
      if (other != nullptr)
        value *= buffer_element<T>(
            *other, integer_at(site.other_offset, offsets, lane) + trailing_offset_of(*other, t));
      copy[first + t] += value;
      to.touched[(first + t) / kTouchedLine] = 1;
    }
  }
}

}  // namespace

template <class T>
void add_lanes(const GradientTile& tile, const GradientBlock& block,
               const BackwardFunctions<T>& functions, T* sums) noexcept {
  const TileOperand& factor = tile.site.factor;
  AddLaneSumsArgs<T> args{.block = {.rows = block.row_end - block.row_begin,
                                    .panels = block.panel_end - block.panel_begin},
                          .gradients = block_row<T>(block, block.panel_begin, block.row_begin),
                          .factor_step = factor.row_step / static_cast<ptrdiff_t>(sizeof(T)),
                          .factor_per_row = factor.broadcast,
                          .sums = sums + block.panel_begin * kPanel};
  if (tile.site.has_factor) {
    args.factors = reinterpret_cast<const T*>(tile.runner.row_of(factor, block.row_begin));
    if (!factor.broadcast) args.factors += block.panel_begin * kPanel;
  }
  functions.add_lane_sums(args);
}

template <class T>
void add_rows(const GradientTile& tile, const GradientBlock& block, T* sums) noexcept {
  const Products<T> products(tile, block);
  for (int row = block.row_begin; row < block.row_end; ++row) {
    T* const to = sums + (tile.key + row) * kPanel;
    T sum[kPanel], part[kPanel];
    std::copy_n(to, kPanel, sum);
    for (int panel = block.panel_begin; panel < block.panel_end; ++panel) {
      products.load(row, panel, part);
      for (int j = 0; j < kPanel; ++j) sum[j] += part[j];
    }
    std::copy_n(sum, kPanel, to);
  }
}

template <class T>
void add_diagonals(const GradientTile& tile, const GradientBlock& block,
                   const SiteSums& sums) noexcept {
  const Products<T> products(tile, block);
  for (int row = block.row_begin; row < block.row_end; ++row) {
    const int64_t key = tile.key + row, part_of = key % kPanel;
    T* const to = static_cast<T*>(sums.sums) + part_of * sums.pitch + tile.query +
                  sums.first_diagonal - (key - part_of);
    for (int panel = block.panel_begin; panel < block.panel_end; ++panel) {
      T part[kPanel];
      products.load(row, panel, part);
      for (int j = 0; j < kPanel; ++j) to[panel * kPanel + j] += part[j];
    }
  }
}

// In blocks of 16 rows, so that whichever axis lies together in memory is walked innermost.
template <class T>
void add_direct(const GradientTile& tile, const GradientBlock& block, T* gradient) noexcept {
  const Products<T> products(tile, block);
  const GradientSite& site = tile.site;
  T* const origin = gradient + integer_at(site.index, tile.runner.row_of(site.index, 0), 0);
  for (int panel = block.panel_begin; panel < block.panel_end; ++panel) {
    const int lanes = std::min(kPanel, tile.lanes - panel * kPanel);
    for (int first = block.row_begin; first < block.row_end; first += kBlockRows) {
      const int rows = std::min(kBlockRows, block.row_end - first);
      T parts[kBlockRows][kPanel];
      for (int r = 0; r < rows; ++r) products.load(first + r, panel, parts[r]);
      T* const to = origin + first * site.row_step + panel * kPanel * site.lane_step;
      if (site.row_step == 1) {
        for (int j = 0; j < lanes; ++j)
          for (int r = 0; r < rows; ++r) to[j * site.lane_step + r] += parts[r][j];
        continue;
      }
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < lanes; ++j) to[r * site.row_step + j * site.lane_step] += parts[r][j];
    }
  }
}

template <class T>
void add_gathered(const GradientTile& tile, const GradientBlock& block, const TargetCopy& to,
                  const TileBuffer* other) noexcept {
  const Products<T> products(tile, block);
  const GradientSite& site = tile.site;
  const Rows rows(tile.runner, site.index);
  for (int row = block.row_begin; row < block.row_end; ++row) {
    const char* const indices = rows[row];
    for (int panel = block.panel_begin; panel < block.panel_end; ++panel) {
      T part[kPanel];
      products.load(row, panel, part);
      if (site.width != 1 || other != nullptr || site.index.broadcast)
        gather_wide(tile, to, other, row, panel, part);
      else if (site.index.type == TileType::kInt32)
        gather_row(tile, to, panel, part,
                   reinterpret_cast<const int32_t*>(indices) + panel * kPanel);
      else
        gather_row(tile, to, panel, part,
                   reinterpret_cast<const int64_t*>(indices) + panel * kPanel);
    }
  }
}

template <class T>
void store_weights(const GradientTile& tile, const GradientBlock& block, T* weights,
                   int64_t panel_step) noexcept {
  const Products<T> products(tile, block);
  for (int panel = 0; panel < kQueryPanels; ++panel) {
    const bool inside = panel >= block.panel_begin && panel < block.panel_end;
    for (int row = block.row_begin; row < block.row_end; ++row) {
      T part[kPanel] = {};
      if (inside) products.load(row, panel, part);
      std::copy_n(part, kPanel, weights + panel * panel_step + row * kPanel);
    }
  }
}

template <class T>
T buffer_element(const TileBuffer& buffer, int64_t offset) noexcept {
  return visit_dtype(buffer.dtype, [&]<class E>(std::type_identity<E>) {
    return static_cast<T>(load_element<E>(buffer.data, offset));
  });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define QUIRE_GRADIENT_SUMS(T)                                                                    \
  template void add_lanes(const GradientTile&, const GradientBlock&, const BackwardFunctions<T>&, \
                          T*) noexcept;                                                           \
  template void add_rows(const GradientTile&, const GradientBlock&, T*) noexcept;                 \
  template void add_diagonals<T>(const GradientTile&, const GradientBlock&,                       \
                                 const SiteSums&) noexcept;                                       \
  template void add_direct(const GradientTile&, const GradientBlock&, T*) noexcept;               \
  template void add_gathered<T>(const GradientTile&, const GradientBlock&, const TargetCopy&,     \
                                const TileBuffer*) noexcept;                                      \
  template void store_weights(const GradientTile&, const GradientBlock&, T*, int64_t) noexcept;   \
  template T buffer_element(const TileBuffer&, int64_t) noexcept;
QUIRE_GRADIENT_SUMS(float)
QUIRE_GRADIENT_SUMS(double)
#undef QUIRE_GRADIENT_SUMS
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace quire::kernels
