// write_pages: stores new keys or values in pages that the caller owns, by slot number, as engines
// with their own cache do. Public; cache layer.
#pragma once
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/tensor_view.h"

namespace quire {

/// Row i of `rows` [tokens, heads, dim] goes to slot slots[i] % page_size of page slots[i] /
/// page_size of `pages` [pages, heads, page_size, dim], converted to the dtype of the pages as `to`
/// does; u8 and i8 (codes) are copied as they are. Rows with a negative slot are skipped. Slots
/// [tokens], i32 or i64, must be distinct, or it is undefined which row remains. Any strides, but
/// the numbers of a page row must be contiguous. Throws Error, before anything is written, for
/// mismatched shapes and dtypes and for a slot outside the pages.
QUIRE_API void write_pages(const ConstTensorView& rows, const ConstTensorView& slots,
                           const TensorView& pages, Executor* executor = nullptr);

}  // namespace quire
