// Reads page tables and lengths, sequence by sequence. Layout layer.
#include "layout/page_table.h"

#include <algorithm>

#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"
#include "tensor/index_view.h"

namespace quire::layout {
namespace {

void check(const char* where, const char* name, const ConstTensorView& view, std::size_t rank) {
  check_indices(where, name, view);
  if (view.rank() == rank) return;
  fail(ErrorKind::value, where, "{} must have {} axes; got {}", name, rank,
       to_string(view.shape()));
}

}  // namespace

PageTable read_page_table(const char* where, const PageTableSource& from) {
  check(where, "page_table", from.page_table, 2);
  check(where, "lengths", from.lengths, 1);
  const std::int64_t rows = from.page_table.dim(0), most_pages = from.page_table.dim(1);
  if (rows != from.batch || from.lengths.dim(0) != from.batch) {
    fail(ErrorKind::value, where,
         "{} sequences need as many page table rows and lengths; got {} and {}", from.batch, rows,
         from.lengths.dim(0));
  }
  const IndexView numbers(from.page_table), lengths(from.lengths);
  PageTable table;
  table.lengths.reserve(from.batch);
  for (std::int64_t b = 0; b < from.batch; ++b) {
    const std::int64_t length = lengths[b * from.lengths.stride(0)];
    if (length < 0)
      fail(ErrorKind::value, where, "lengths must not be negative; sequence {} has {}", b, length);
    const std::int64_t pages = ceil_div(length, from.page_size);
    if (pages > most_pages) {
      fail(ErrorKind::value, where, "sequence {} has {} keys; {} pages of {} hold fewer", b, length,
           most_pages, from.page_size);
    }
    table.lengths.push_back(length);
    table.longest = std::max(table.longest, length);
    for (std::int64_t i = 0; i < pages; ++i) {
      const std::int64_t page =
          numbers[b * from.page_table.stride(0) + i * from.page_table.stride(1)];
      if (page < 0 || page >= from.pool_pages) {
        fail(ErrorKind::index, where, "page {} of sequence {} is outside a pool of {}; got {}", i,
             b, from.pool_pages, page);
      }
      table.pages.push_back(page);
    }
  }
  return table;
}

}  // namespace quire::layout
