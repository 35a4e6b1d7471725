// Writes states as outputs. Folding and division are those of the prefill kernel. No SIMD. Kernels
// layer.
#include "kernels/decode/finish.h"

#include <algorithm>
#include <type_traits>

#include "kernels/coding/rotate.h"
#include "kernels/prefill/forward_functions.h"
#include "kernels/row_end.h"
#include "kernels/row_stats.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
template <class T>
void fold_split(const ForwardCall& call, const DecodeState<T>& total, const DecodeState<T>& split,
                int row_count) noexcept {
  forward_functions<T>(*call.table)
      .fold({.m = total.m,
             .l = total.l,
             .o = total.o,
             .split_m = split.m,
             .split_l = split.l,
             .split_o = split.o,
             .queries = row_count,
             .columns = total.columns,
             .step = total.columns,
             .exponent_factor = exponent_factor<T>(call.natural, call.scale)});
}

template <class T>
bool finish_ordered(const ForwardCall& call, const QueryRow& row, const T* m, const T* l,
                    T* o) noexcept {
  T sum = *l, factor = 1;
  RowState<T> state{m, l};
  EndedRow<T> ended;
  if (has_end(call)) {
    ended = end_row<T>(call, row.h, *m, sum);
    sum = ended.l;
    factor = ended.factor;
    state.ended = &ended;
  }
  rotate(o, call.value_dims, call.v_coding.rotation);
  const int64_t element = dtype_size(call.out_rows.dtype);
  const uint64_t not_finite =
      forward_functions<T>(*call.table)
          .finish({.l = &sum,
                   .o = o,
                   .step = 0,
                   .queries = 1,
                   .columns = call.value_dims,
                   .factor = &factor,
                   .out = static_cast<char*>(call.out) + row.out_offset * element,
                   .dtype = call.out_rows.dtype,
                   .row_step = 0,
                   .column_step = call.out_rows.column_step});
  write_stats<T>(call, state, 1, row.stat_offset);
  return not_finite == 0;
}

template <class T>
bool finish_row(const ForwardCall& call, const QueryRow& row, const DecodeState<T>& total,
                int index, DecodeKind kind, T* ordered) noexcept {
  decode_functions<T>(*call.table)
      .reorder(kind, total.o + index * total.columns, total.columns, ordered);
  return finish_ordered(call, row, total.m + index, total.l + index, ordered);
}

template void fold_split(const ForwardCall&, const DecodeState<float>&, const DecodeState<float>&,
                         int) noexcept;
template void fold_split(const ForwardCall&, const DecodeState<double>&, const DecodeState<double>&,
                         int) noexcept;
template bool finish_ordered(const ForwardCall&, const QueryRow&, const float*, const float*,
                             float*) noexcept;
template bool finish_ordered(const ForwardCall&, const QueryRow&, const double*, const double*,
                             double*) noexcept;
template bool finish_row(const ForwardCall&, const QueryRow&, const DecodeState<float>&, int,
                         DecodeKind, float*) noexcept;
template bool finish_row(const ForwardCall&, const QueryRow&, const DecodeState<double>&, int,
                         DecodeKind, double*) noexcept;

}  // namespace quire::kernels
