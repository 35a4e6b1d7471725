// RowStore: the keys or the values of a layer in pages: numbers of a dtype, or codes with their
// scales. Knows how rows are stored; nothing of pools or sequences. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/row_encoder.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::cache {

// The rows starting at a slot of a page.
struct RowPlace {
  std::int32_t page = kNoPage;
  std::int64_t slot = 0;
};

// Some rows of a step.
struct SomeRows {
  const ConstTensorView& rows;  // [tokens, kv_heads, dim], any strides
  std::int64_t first = 0, n = 0;
};

class RowStore {
 public:
  // Requires that the format exists and fits the dim.
  RowStore(const Shape& pages, DType dtype, const KVFormat& format);

  // As attention takes it; the first `dim` numbers of rows.
  KVView view(std::int64_t dim) const;
  TensorView pages(std::int64_t dim);
  TensorView scales(std::int64_t dim);
  const KVFormat& format() const noexcept { return format_; }
  std::int64_t dim() const noexcept { return dim_; }

  // Whether the scales that the format shares between tokens are known.
  bool has_scales() const noexcept { return has_scales_; }
  // [kv_heads, dim] or [kv_heads], checked.
  void set_scales(const ConstTensorView& scales);
  // Their bytes; empty if every row has its own.
  std::span<const std::byte> shared_scales() const noexcept;

  // The tensors with a row for every token, [n_pages, kv_heads, page_size, ..].
  Tensor& rows() noexcept { return rows_; }
  const Tensor& rows() const noexcept { return rows_; }
  Tensor* row_scales() noexcept { return quant::has_row_scales(format_) ? &scales_ : nullptr; }
  const Tensor* row_scales() const noexcept {
    return quant::has_row_scales(format_) ? &scales_ : nullptr;
  }

  // Stores rows in consecutive slots of a page. Returns the index of the first row with a number
  // that cannot be coded (it is stored anyway and decodes to an arbitrary value), or n.
  std::int64_t write(RowPlace to, const SomeRows& from) noexcept;
  // Returns the same without storing anything.
  std::int64_t first_without_code(const SomeRows& from) const noexcept;

 private:
  KVFormat format_;
  std::int64_t dim_;
  bool has_scales_;
  Tensor rows_, scales_;
};

// Bytes of a row, its own scales included.
std::int64_t row_bytes(const KVFormat& format, std::int64_t dim, DType dtype);
// Bytes of one row of a tensor, and where the rows of a page and head begin.
std::int64_t row_bytes(const Tensor& rows) noexcept;
std::byte* page_rows(Tensor& rows, std::int64_t page, std::int64_t head) noexcept;
const std::byte* page_rows(const Tensor& rows, std::int64_t page, std::int64_t head) noexcept;

}  // namespace quire::cache
