// GroupRows: copies of rows, head by head. Cache layer.
#include "cache/group_rows.h"

#include <cstring>

#include "runtime/memory.h"
#include "tensor/convert.h"

namespace quire::cache {
namespace {

// Rows of consecutive tokens and one head, dim elements each; strides in elements.
struct HeadRows {
  const std::byte* from;
  DType dtype;
  std::int64_t n, dim, row_stride, stride;
};

void copy_rows(const HeadRows& rows, DType dtype, std::byte* to) noexcept {
  if (rows.dtype != dtype || (rows.dim > 1 && rows.stride != 1)) {
    copy_elements({rows.from, rows.dtype, {rows.n, rows.dim}, {rows.row_stride, rows.stride}},
                  dtype, to);
    return;
  }
  const auto size = static_cast<std::int64_t>(dtype_size(dtype));
  for (std::int64_t row = 0; row < rows.n; ++row)
    std::memcpy(to + row * rows.dim * size, rows.from + row * rows.row_stride * size,
                static_cast<std::size_t>(rows.dim * size));
}

void write_rows(Tensor& pages, RowPlace to, const ConstTensorView& rows, std::int64_t first_row,
                std::int64_t n) noexcept {
  const auto size = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  const std::int64_t dim = rows.dim(2), begin = first_row * rows.stride(0);
  const std::int64_t first = to.slot * dim * static_cast<std::int64_t>(dtype_size(pages.dtype()));
  HeadRows run{nullptr, rows.dtype(), n, dim, rows.stride(0), rows.stride(2)};
  for (std::int64_t head = 0; head < rows.dim(1); ++head) {
    run.from = static_cast<const std::byte*>(rows.data()) + (begin + head * rows.stride(1)) * size;
    copy_rows(run, pages.dtype(), page_rows(pages, to.page, head) + first);
  }
}

}  // namespace

std::int64_t token_bytes(const KVLayerGroup& group) {
  const auto dims =
      (group.head_dim + group.v_head_dim) * static_cast<std::int64_t>(dtype_size(group.dtype));
  return saturating_product(saturating_product(std::ssize(group.layers), group.kv_heads), dims);
}

GroupRows::GroupRows(const KVLayerGroup& group, std::int64_t page_size, std::int64_t n_pages) {
  for (std::size_t layer = 0; layer < group.layers.size(); ++layer) {
    Shape shape{n_pages, group.kv_heads, page_size, group.head_dim};
    k_.push_back(Tensor::empty(shape, group.dtype));
    shape[3] = group.v_head_dim;
    v_.push_back(Tensor::empty(shape, group.dtype));
  }
}

void GroupRows::copy(RowPlace from, RowPlace to, std::int64_t n) noexcept {
  for (std::vector<Tensor>* tensors : {&k_, &v_}) {
    for (Tensor& tensor : *tensors) {
      const std::int64_t row =
          tensor.shape()[3] * static_cast<std::int64_t>(dtype_size(tensor.dtype()));
      for (std::int64_t head = 0; head < tensor.shape()[1]; ++head)
        std::memmove(page_rows(tensor, to.page, head) + to.slot * row,
                     page_rows(tensor, from.page, head) + from.slot * row,
                     static_cast<std::size_t>(n * row));
    }
  }
}

void GroupRows::write(std::size_t layer, RowPlace to, const StepRows& rows) noexcept {
  write_rows(k_[layer], to, rows.k, rows.first, rows.n);
  write_rows(v_[layer], to, rows.v, rows.first, rows.n);
}

std::byte* page_rows(Tensor& rows, std::int64_t page, std::int64_t head) noexcept {
  const Shape& shape = rows.shape();
  const std::int64_t offset = (page * shape[1] + head) * shape[2] * shape[3];
  return static_cast<std::byte*>(rows.data()) +
         static_cast<std::size_t>(offset) * dtype_size(rows.dtype());
}

const std::byte* page_rows(const Tensor& rows, std::int64_t page, std::int64_t head) noexcept {
  return page_rows(const_cast<Tensor&>(rows), page, head);
}

}  // namespace quire::cache
