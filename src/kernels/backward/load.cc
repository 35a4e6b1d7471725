// Loads rows into the scratch of a chunk (keys and values once, queries tile by tile with the next
// ones prefetched) and stores the gradients of keys and values. Kernels layer.
#include <algorithm>
#include <utility>

#include "kernels/backward/backward.h"
#include "kernels/backward/rows.h"

namespace quire::kernels {
namespace {

const void* element_address(const void* data, const ForwardTensor& tensor, int64_t offset) {
  return static_cast<const char*>(data) + offset * static_cast<int64_t>(dtype_size(tensor.dtype));
}

RowsView rows_at(const void* data, const ForwardTensor& tensor, int64_t offset, int rows,
                 int columns) {
  return {.data = element_address(data, tensor, offset),
          .dtype = tensor.dtype,
          .row_step = tensor.row_step,
          .column_step = tensor.column_step,
          .rows = rows,
          .columns = columns};
}

}  // namespace

// The keys and values of a span that are in the chunk, in compute type.
template <class T>
void BackwardChunk<T>::load_keys(const KeySpan& span) noexcept {
  const int64_t begin = std::max(span.begin, begin_), end = std::min(span.end, begin_ + count_);
  if (begin >= end) return;
  const int64_t ahead = begin - span.begin, row = begin - begin_;
  const auto rows = static_cast<int>(end - begin);
  const RowsView keys =
      rows_at(forward_.k, forward_.k_rows, span.key_offset + ahead * forward_.k_rows.row_step, rows,
              forward_.dims);
  functions_.copy_rows({keys, memory_.keys + row * memory_.step, memory_.step,
                        static_cast<int>(whole_panels(forward_.dims))});
  if (forward_.rope.half > 0)
    functions_.rotate({.tables = &forward_.rope,
                       .rows = memory_.keys + row * memory_.step,
                       .step = memory_.step,
                       .count = rows,
                       .position = begin});
  if (forward_.pairs) {
    const int pairs = row_pairs(forward_);
    forward_.table->pairs->copy_rows(keys, memory_.key_pairs + row * pairs, pairs);
  }
  functions_.copy_rows(
      {rows_at(forward_.v, forward_.v_rows, span.value_offset + ahead * forward_.v_rows.row_step,
               rows, forward_.value_dims),
       memory_.values + row * memory_.value_step, memory_.value_step,
       static_cast<int>(whole_panels(forward_.value_dims))});
}

template <class T>
void BackwardChunk<T>::find_spoiled_keys() noexcept {
  const auto columns = static_cast<int>(whole_panels(forward_.dims));
  const auto value_columns = static_cast<int>(whole_panels(forward_.value_dims));
  for (int row = 0; row < count_; ++row)
    memory_.spoiled_keys[row] =
        !backward_.is_finite(memory_.keys + row * memory_.step, columns) ||
        !backward_.is_finite(memory_.values + row * memory_.value_step, value_columns);
}

template <class T>
void BackwardChunk<T>::bring_next() noexcept {
  next_q_.bring_some();
  next_d_out_.bring_some();
}

template <class T>
void BackwardChunk<T>::load_queries() noexcept {
  const QueryTile& at = tile_->at;
  const int panels = (at.queries + kPanel - 1) / kPanel;
  const RowsView q = rows_at(forward_.q, forward_.q_rows, at.q_offset, at.queries, forward_.dims);
  spoiled_q_ = load_rows(q, memory_.queries, memory_.step);
  if (forward_.rope.half > 0) {
    functions_.rotate({.tables = &forward_.rope,
                       .rows = memory_.queries,
                       .step = memory_.step,
                       .count = at.queries,
                       .position = at.q_idx});
    functions_.load_queries({{.data = memory_.queries,
                              .dtype = dtype_of<T>,
                              .row_step = memory_.step,
                              .rows = at.queries,
                              .columns = forward_.dims},
                             panels,
                             memory_.query_columns});
  } else if (forward_.pairs) {
    forward_.table->pairs->load_queries(q, panels,
                                        reinterpret_cast<uint32_t*>(memory_.query_columns));
  } else {
    functions_.load_queries({q, panels, memory_.query_columns});
  }
  next_q_ = RowPrefetch(q, -kQueryTile);
  spoiled_d_out_ = 0;
  if (call_.d_out != nullptr) {
    const RowsView d_out =
        rows_at(call_.d_out, call_.d_out_rows, at.out_offset, at.queries, forward_.value_dims);
    functions_.load_queries({d_out, panels, memory_.d_out_columns});
    spoiled_d_out_ = load_rows(d_out, memory_.d_outs, memory_.value_step);
    if (tile_->share != nullptr) scale_d_out(static_cast<const T*>(tile_->share));
    next_d_out_ = RowPrefetch(d_out, -kQueryTile);
  }
  if (call_.wants_q) std::fill_n(memory_.d_queries, at.queries * memory_.step, T(0));
  loaded_ = true;
}

// For calls with sinks: multiplies every row of d_out by the keys' share of the weights.
template <class T>
void BackwardChunk<T>::scale_d_out(const T* share) noexcept {
  const int queries = tile_->at.queries;
  T* columns = memory_.d_out_columns;
  for (int d = 0; d < forward_.value_dims; ++d, columns += kQueryTile)
    for (int lane = 0; lane < kQueryTile; ++lane) columns[lane] *= share[lane];
  for (int row = 0; row < queries; ++row)
    for (int d = 0; d < forward_.value_dims; ++d)
      memory_.d_outs[row * memory_.value_step + d] *= share[row];
}

// Rows in compute type, zeros up to a whole panel of them; returns a bit for each that is not
// finite.
template <class T>
uint64_t BackwardChunk<T>::load_rows(const RowsView& from, T* rows, ptrdiff_t step) noexcept {
  const auto columns = static_cast<int>(whole_panels(from.columns));
  functions_.copy_rows({from, rows, step, columns});
  uint64_t spoiled = 0;
  for (int row = 0; row < from.rows; ++row)
    if (!backward_.is_finite(rows + row * step, columns)) spoiled |= uint64_t{1} << row;
  const int end = (from.rows + kPanel - 1) / kPanel * kPanel;
  std::fill(rows + from.rows * step, rows + end * step, T(0));
  return spoiled;
}

// Every head has its own sums: hundreds of chains in one sum would cost the last digits.
template <class T>
void BackwardChunk<T>::begin_head(const QueryTile& at) noexcept {
  if (at.b == b_ && at.h == h_) return;
  if (h_ >= 0) {
    add_to_sums();
    std::fill_n(memory_.d_keys, count_ * memory_.step, T(0));
    std::fill_n(memory_.d_values, count_ * memory_.value_step, T(0));
  }
  b_ = at.b;
  h_ = at.h;
}

// Adds the sums of the head that ends; those of the first head are taken as they are.
template <class T>
void BackwardChunk<T>::add_to_sums() noexcept {
  if (!has_sums_) {
    std::swap(memory_.d_keys, memory_.sum_keys);
    std::swap(memory_.d_values, memory_.sum_values);
    has_sums_ = true;
    return;
  }
  const auto add = [&](const T* from, ptrdiff_t step, int dims, T* to) {
    backward_.add_rows({.from = from,
                        .from_step = step,
                        .rows = count_,
                        .columns = static_cast<int>(whole_panels(dims)),
                        .to = to,
                        .to_step = step});
  };
  add(memory_.d_keys, memory_.step, forward_.dims, memory_.sum_keys);
  add(memory_.d_values, memory_.value_step, forward_.value_dims, memory_.sum_values);
}

template <class T>
void BackwardChunk<T>::finish() noexcept {
  if (has_sums_) {
    add_to_sums();
    std::swap(memory_.d_keys, memory_.sum_keys);
    std::swap(memory_.d_values, memory_.sum_values);
  }
  if (call_.d_k.data == nullptr) return;
  for (ptrdiff_t i = 0; i < count_ * memory_.step; ++i) memory_.d_keys[i] *= scale_;
  if (forward_.rope.half > 0)
    functions_.rotate({.tables = &forward_.rope,
                       .rows = memory_.d_keys,
                       .step = memory_.step,
                       .count = count_,
                       .position = begin_,
                       .back = true});
}

template <class T>
void BackwardChunk<T>::write(const ChunkRows& rows, int64_t d_k_offset,
                             int64_t d_v_offset) noexcept {
  const auto write_to = [&](const GradientTensor& to, const T* from, ptrdiff_t step, int columns,
                            int64_t offset) {
    if (to.data != nullptr)
      write_rows<T>(functions_, {from + rows.first * step, step, rows.count, columns}, to, offset);
  };
  write_to(call_.d_k, memory_.d_keys, memory_.step, forward_.dims, d_k_offset);
  write_to(call_.d_v, memory_.d_values, memory_.value_step, forward_.value_dims, d_v_offset);
}

template <class T>
void BackwardChunk<T>::add_to(const ChunkRows& rows, T* d_k, T* d_v) noexcept {
  const auto add = [&](const GradientTensor& to, const T* from, ptrdiff_t step, int dims, T* sums) {
    const auto columns = static_cast<int>(whole_panels(dims));
    if (to.data != nullptr)
      backward_.add_rows({.from = from + rows.first * step,
                          .from_step = step,
                          .rows = rows.count,
                          .columns = columns,
                          .to = sums,
                          .to_step = columns});
  };
  add(call_.d_k, memory_.d_keys, memory_.step, forward_.dims, d_k);
  add(call_.d_v, memory_.d_values, memory_.value_step, forward_.value_dims, d_v);
}

template void BackwardChunk<float>::load_keys(const KeySpan&) noexcept;
template void BackwardChunk<float>::find_spoiled_keys() noexcept;
template void BackwardChunk<float>::load_queries() noexcept;
template void BackwardChunk<float>::bring_next() noexcept;
template void BackwardChunk<float>::scale_d_out(const float*) noexcept;
template void BackwardChunk<float>::begin_head(const QueryTile&) noexcept;
template void BackwardChunk<float>::finish() noexcept;
template void BackwardChunk<float>::write(const ChunkRows&, int64_t, int64_t) noexcept;
template void BackwardChunk<float>::add_to(const ChunkRows&, float*, float*) noexcept;
template void BackwardChunk<double>::load_keys(const KeySpan&) noexcept;
template void BackwardChunk<double>::find_spoiled_keys() noexcept;
template void BackwardChunk<double>::load_queries() noexcept;
template void BackwardChunk<double>::bring_next() noexcept;
template void BackwardChunk<double>::scale_d_out(const double*) noexcept;
template void BackwardChunk<double>::begin_head(const QueryTile&) noexcept;
template void BackwardChunk<double>::finish() noexcept;
template void BackwardChunk<double>::write(const ChunkRows&, int64_t, int64_t) noexcept;
template void BackwardChunk<double>::add_to(const ChunkRows&, double*, double*) noexcept;

}  // namespace quire::kernels
