// PageTable: the pages and lengths of all sequences of a call over paged keys, read from the
// caller's tensors and checked. Layout layer.
#pragma once
#include <cstdint>
#include <vector>

#include "quire/tensor_view.h"

namespace quire::layout {

struct PageTable {
  std::vector<std::int64_t> lengths;  // keys of each sequence
  std::vector<std::int64_t> pages;    // of one sequence after the other, as many as its keys need
  std::int64_t longest = 0;
};

/// The tensors that pages are read from, as in quire::PagedKeys, and what they must fit.
struct PageTableSource {
  const ConstTensorView &page_table, &lengths;
  std::int64_t batch = 0;  // sequences
  std::int64_t pool_pages = 0, page_size = 1;
};

/// Throws Error "[where] ..." for another dtype, rank or number of sequences, a negative length,
/// more keys than a row of the table has room for, and pages outside the pool.
PageTable read_page_table(const char* where, const PageTableSource& from);

}  // namespace quire::layout
