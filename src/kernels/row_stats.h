// lse and max_scores of finished rows from their states: one definition for all kernels. Kernels
// layer.
#pragma once
#include <cstdint>

#include "kernels/forward_problem.h"
#include "kernels/row_end.h"

namespace quire::kernels {

template <class T>
struct RowState {
  const T *m, *l;
  const EndedRow<T>* ended = nullptr;  // of a call that ends rows (has_end)
};

/// Of `rows` rows, to the stat_offset-th place on, stat_step apart. lse: natural form m + log(l),
/// scaled form fma(m, scale, log(l)); -inf for a row that saw nothing. With lse_with_sinks: of the
/// ended row m + log(l), the sink for a row that saw nothing. Of a formula's weights: their sum.
/// max_scores: m, scaled form m * scale. row_max and row_sum: m and l.
template <class T>
void write_stats(const ForwardCall& call, const RowState<T>& state, int rows,
                 int64_t stat_offset) noexcept;

}  // namespace quire::kernels
