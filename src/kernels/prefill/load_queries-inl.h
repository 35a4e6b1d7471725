// Loads the queries of a tile from rows into lanes: out[d][lane], in the compute type. One panel at
// a time, some columns at a time: widened to a small buffer, then transposed. Kernels layer.
#pragma once
#include "kernels/copy_rows-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr int kQueryChunk = 64;  // columns in the buffer: 4 or 8 KiB

// out[column][lane] = from[lane][column] for 16 lanes; rows of `out` are 64 lanes.
template <class T>
HWY_INLINE void transpose_panel(const T* from, ptrdiff_t step, int columns, T* HWY_RESTRICT out) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<T, float>)
    c = static_cast<int>(transpose_columns(from, step, columns, reinterpret_cast<char*>(out),
                                           kQueryTile * sizeof(float)));
#endif
  for (; c < columns; ++c)
    for (ptrdiff_t lane = 0; lane < kPanel; ++lane)
      out[c * kQueryTile + lane] = from[lane * step + c];
}

// Rows [first_row, first_row + 16) through the buffer, which widens and fills up.
template <class T, class E>
HWY_INLINE void load_panel(const RowsView& view, int first_row, T* HWY_RESTRICT out) {
  HWY_ALIGN T buffer[kPanel][kQueryChunk];
  for (int first = 0; first < view.columns; first += kQueryChunk) {
    const int columns = HWY_MIN(kQueryChunk, view.columns - first);
    for (int lane = 0; lane < kPanel; ++lane) {
      if (first_row + lane < view.rows) {
        const E* row = static_cast<const E*>(view.data) + (first_row + lane) * view.row_step;
        copy_row(row + first * view.column_step, view.column_step, columns, buffer[lane]);
      } else {
        for (int c = 0; c < columns; ++c) buffer[lane][c] = 0;
      }
    }
    transpose_panel(buffer[0], kQueryChunk, columns, out + first * kQueryTile);
  }
}

template <class T, class E>
HWY_INLINE void load_queries_of(const LoadQueriesArgs<T>& args) {
  const RowsView& view = args.from;
  for (int row = 0; row < args.panels * kPanel; row += kPanel) {
    if constexpr (std::is_same_v<T, E>) {
      if (view.column_step == 1 && row + kPanel <= view.rows) {
        transpose_panel(static_cast<const T*>(view.data) + row * view.row_step, view.row_step,
                        view.columns, args.out + row);
        continue;
      }
    }
    load_panel<T, E>(view, row, args.out + row);
  }
}

template <class T>
void load_queries(const LoadQueriesArgs<T>& args) noexcept {
  switch (args.from.dtype) {
    case DType::f32:
      return load_queries_of<T, float>(args);
    case DType::f64:
      return load_queries_of<T, double>(args);
    case DType::bf16:
      return load_queries_of<T, Bf16Bits>(args);
    case DType::f16:
      return load_queries_of<T, F16Bits>(args);
    default:
      return;
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
