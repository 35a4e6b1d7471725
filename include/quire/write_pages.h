// write_pages: new keys or values into pages of the caller's, by slot, as engines with a cache of
// their own number them. Public; cache layer.
#pragma once
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/tensor_view.h"

namespace quire {

/// Row i of `rows` [tokens, heads, dim] goes to slot slots[i] % page_size of page slots[i] /
/// page_size of `pages` [pages, heads, page_size, dim], converted to the dtype of the pages as `to`
/// does; u8 and i8, that is codes, stay what they are. A slot below 0: the row is left out. Slots
/// [tokens], i32 or i64, must differ, or it is open which row stays. Any strides; numbers of a row
/// of pages side by side. Throws Error, before anything is written, for shapes and dtypes that do
/// not fit and for a slot outside the pages.
QUIRE_API void write_pages(const ConstTensorView& rows, const ConstTensorView& slots,
                           const TensorView& pages, Executor* executor = nullptr);

}  // namespace quire
