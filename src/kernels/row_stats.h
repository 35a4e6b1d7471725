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
  const EndedRow<T>* ended = nullptr;  // only where rows are ended (has_end)
};

/// Writes the statistics of `rows` rows from index stat_offset on, stat_step apart. lse: natural
/// form m + log(l), scaled form fma(m, scale, log(l)); -inf for a row that saw nothing. With
/// lse_with_sinks: m + log(l) of the ended row, the sink for a row that saw nothing. For weights by
/// a formula: their sum. max_scores: m, scaled form m * scale. row_max and row_sum: m and l.
template <class T>
void write_stats(const ForwardCall& call, const RowState<T>& state, int rows,
                 int64_t stat_offset) noexcept;

}  // namespace quire::kernels
