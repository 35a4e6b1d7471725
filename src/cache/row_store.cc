// RowStore: copies, converts or codes rows into pages, head by head. Cache layer.
#include "cache/row_store.h"

#include <algorithm>
#include <cstring>

#include "tensor/convert.h"

namespace quire::cache {
namespace {

// Rows of consecutive tokens for one head, or of all heads for one token.
kernels::RowsView some_rows(const SomeRows& from, std::int64_t token, std::int64_t head,
                            bool of_token) {
  const ConstTensorView& rows = from.rows;
  const auto size = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  const std::int64_t offset = (from.first + token) * rows.stride(0) + head * rows.stride(1);
  return {.data = static_cast<const std::byte*>(rows.data()) + offset * size,
          .dtype = rows.dtype(),
          .row_step = of_token ? rows.stride(1) : rows.stride(0),
          .column_step = rows.stride(2),
          .rows = static_cast<int>(of_token ? rows.dim(1) : from.n),
          .columns = static_cast<int>(rows.dim(2))};
}

kernels::RowsView head_rows(const SomeRows& from, std::int64_t head) {
  return some_rows(from, 0, head, false);
}

void copy_rows(const kernels::RowsView& rows, DType dtype, std::byte* to) noexcept {
  if (rows.dtype != dtype || (rows.columns > 1 && rows.column_step != 1)) {
    copy_elements(
        {rows.data, rows.dtype, {rows.rows, rows.columns}, {rows.row_step, rows.column_step}},
        dtype, to);
    return;
  }
  const auto size = static_cast<std::ptrdiff_t>(dtype_size(dtype));
  for (int row = 0; row < rows.rows; ++row)
    std::memcpy(to + row * rows.columns * size,
                static_cast<const std::byte*>(rows.data) + row * rows.row_step * size,
                rows.columns * size);
}

Shape scale_shape(const KVFormat& format, Shape pages, std::int64_t dim) {
  if (!format.has_scales()) return {0};
  if (format.scale == ScaleAxis::kChannel) return {pages[1], dim};
  if (format.scale == ScaleAxis::kHead) return {pages[1]};
  pages.erase(3);
  if (format.scale == ScaleAxis::kGroup) pages.push_back(dim / kernels::kCodeGroup);
  if (format.offset != CodeOffset::kNone) pages.push_back(2);
  return pages;
}

Shape code_shape(const KVFormat& format, Shape pages) {
  if (!format.is_plain()) pages[3] = format.code_bytes(pages[3]);
  return pages;
}

}  // namespace

RowStore::RowStore(const Shape& pages, DType dtype, const KVFormat& format)
    : format_(format),
      dim_(pages[3]),
      has_scales_(format.scale != ScaleAxis::kChannel),
      rows_(Tensor::empty(code_shape(format, pages),
                          format.is_plain() ? dtype : format.code_dtype())),
      scales_(Tensor::empty(scale_shape(format, pages, pages[3]), format.scale_dtype())) {
  if (quant::has_given_scales(format)) std::fill_n(scales_.data_as<float>(), scales_.numel(), 1.0f);
}

TensorView RowStore::pages(std::int64_t dim) {
  return rows_.view().slice(3, 0, format_.is_plain() ? dim : format_.code_bytes(dim));
}

TensorView RowStore::scales(std::int64_t dim) {
  if (format_.scale == ScaleAxis::kChannel) return scales_.view().slice(1, 0, dim);
  if (format_.has_scales() && format_.scale == ScaleAxis::kGroup)
    return scales_.view().slice(3, 0, dim / kernels::kCodeGroup);
  return scales_.view();
}

KVView RowStore::view(std::int64_t dim) const {
  auto& store = const_cast<RowStore&>(*this);
  if (format_.is_plain()) return store.pages(dim);
  return {store.pages(dim), format_.has_scales() ? store.scales(dim) : TensorView(), format_};
}

void RowStore::set_scales(const ConstTensorView& scales) {
  const Tensor given = contiguous(scales.numel() == 1 ? scales.expand(scales_.shape()) : scales);
  std::memcpy(scales_.data(), given.data(), given.numel() * sizeof(float));
  has_scales_ = true;
}

std::span<const std::byte> RowStore::shared_scales() const noexcept {
  if (!quant::has_given_scales(format_)) return {};
  return {static_cast<const std::byte*>(scales_.data()), scales_.numel() * sizeof(float)};
}

std::int64_t RowStore::write(RowPlace to, const SomeRows& from) noexcept {
  const std::int64_t heads = from.rows.dim(1), row = row_bytes(rows_);
  std::int64_t without = from.n;
  if (format_.is_plain()) {
    for (std::int64_t head = 0; head < heads; ++head)
      copy_rows(head_rows(from, head), rows_.dtype(),
                page_rows(rows_, to.page, head) + to.slot * row);
    return without;
  }
  const quant::RowEncoder encoder(format_, dim_);
  // Where the codes and scales of a head are, or those of all heads of a token.
  const auto place = [&](std::int64_t token, std::int64_t head, bool of_token) {
    const std::int64_t slot = to.slot + token;
    quant::CodePlace at{.codes = page_rows(rows_, to.page, head) + slot * row,
                        .code_step = of_token ? rows_.shape()[2] * row : row};
    if (Tensor* const scales = row_scales()) {
      const std::int64_t step = row_bytes(*scales);
      at.scale_step = of_token ? rows_.shape()[2] * step : step;
      at.scales = page_rows(*scales, to.page, head) + slot * step;
    } else if (format_.has_scales()) {
      const std::int64_t step = scales_.numel() / heads * std::int64_t{sizeof(float)};
      at.scale_step = of_token ? step : 0;
      at.scales = static_cast<std::byte*>(scales_.data()) + head * step;
    }
    return at;
  };
  // A decode step has one token per page: all its heads are coded at once.
  if (from.n < heads) {
    for (std::int64_t token = 0; token < from.n; ++token)
      if (encoder.encode(some_rows(from, token, 0, true), place(token, 0, true)) < heads)
        without = std::min(without, token);
    return without;
  }
  for (std::int64_t head = 0; head < heads; ++head)
    without = std::min<std::int64_t>(without,
                                     encoder.encode(head_rows(from, head), place(0, head, false)));
  return without;
}

std::int64_t RowStore::first_without_code(const SomeRows& from) const noexcept {
  std::int64_t without = from.n;
  if (format_.is_plain()) return without;
  const quant::RowEncoder encoder(format_, dim_);
  for (std::int64_t head = 0; head < from.rows.dim(1); ++head)
    without = std::min<std::int64_t>(without, encoder.first_without_code(head_rows(from, head)));
  return without;
}

std::int64_t row_bytes(const KVFormat& format, std::int64_t dim, DType dtype) {
  if (format.is_plain()) return dim * static_cast<std::int64_t>(dtype_size(dtype));
  const std::int64_t codes = format.code_bytes(dim);
  if (!quant::has_row_scales(format)) return codes;
  return codes +
         format.scale_count(dim) * static_cast<std::int64_t>(dtype_size(format.scale_dtype()));
}

std::int64_t row_bytes(const Tensor& rows) noexcept {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  for (std::size_t axis = 3; axis < rows.shape().rank(); ++axis) bytes *= rows.shape()[axis];
  return bytes;
}

std::byte* page_rows(Tensor& rows, std::int64_t page, std::int64_t head) noexcept {
  const Shape& shape = rows.shape();
  return static_cast<std::byte*>(rows.data()) +
         (page * shape[1] + head) * shape[2] * row_bytes(rows);
}

const std::byte* page_rows(const Tensor& rows, std::int64_t page, std::int64_t head) noexcept {
  return page_rows(const_cast<Tensor&>(rows), page, head);
}

}  // namespace quire::cache
