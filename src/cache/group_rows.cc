// GroupRows: the stores of a group's layers, and how rows move inside them. Cache layer.
#include "cache/group_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/memory.h"

namespace quire::cache {

std::int64_t token_bytes(const KVLayerGroup& group) {
  std::int64_t bytes = row_bytes(group.k_format, group.head_dim, group.dtype);
  if (!group.v_in_k) bytes += row_bytes(group.v_format, group.v_head_dim, group.dtype);
  return saturating_product(saturating_product(std::ssize(group.layers), group.kv_heads), bytes);
}

GroupRows::GroupRows(const KVLayerGroup& group, std::int64_t page_size, std::int64_t n_pages) {
  for (std::size_t layer = 0; layer < group.layers.size(); ++layer) {
    Shape shape{n_pages, group.kv_heads, page_size, group.head_dim};
    k_.emplace_back(shape, group.dtype, group.k_format);
    if (group.v_in_k) continue;
    shape[3] = group.v_head_dim;
    v_.emplace_back(shape, group.dtype, group.v_format);
  }
}

void GroupRows::copy(RowPlace from, RowPlace to, std::int64_t n) noexcept {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    visit_stored(layer, [&](Tensor& tensor) {
      const std::int64_t row = row_bytes(tensor);
      for (std::int64_t head = 0; head < tensor.shape()[1]; ++head)
        std::memmove(page_rows(tensor, to.page, head) + to.slot * row,
                     page_rows(tensor, from.page, head) + from.slot * row, n * row);
    });
  }
}

std::int64_t GroupRows::write(std::size_t layer, RowPlace to, const StepRows& rows) noexcept {
  const std::int64_t k = k_[layer].write(to, {rows.k, rows.first, rows.n});
  if (rows.v == nullptr) return k;
  return std::min(k, v_[layer].write(to, {*rows.v, rows.first, rows.n}));
}

}  // namespace quire::cache
