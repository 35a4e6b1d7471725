// PageTables: construction, reserve and erase. Cache layer.
#include "quire/page_tables.h"

#include <utility>

#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"

namespace quire {
namespace {

constexpr const char* kPagedAttention = "PagedAttention";

void check_table(const char* name, const TensorView& table, const Shape& shape) {
  if (table.dtype() != DType::i64)
    fail(ErrorKind::type, kPagedAttention, "{} must be i64; got {}", name,
         dtype_name(table.dtype()));
  if (table.shape() != shape) {
    fail(ErrorKind::value, kPagedAttention, "{} must have shape {}; got {}", name, to_string(shape),
         to_string(table.shape()));
  }
}

}  // namespace

PageTables::PageTables(const TensorView& page_table, const TensorView& capacity,
                       const TensorView& physical_to_logical, std::int64_t page_size)
    : page_table_(page_table),
      capacity_(capacity),
      physical_to_logical_(physical_to_logical),
      page_size_(page_size) {
  if (page_table.rank() != 2) {
    fail(ErrorKind::value, kPagedAttention, "page_table must be [max_batch_size, n_pages]; got {}",
         to_string(page_table.shape()));
  }
  check_table("page_table", page_table, page_table.shape());
  check_table("capacity", capacity, {page_table.dim(0)});
  check_table("physical_to_logical", physical_to_logical, page_table.shape());
  if (page_size < 1)
    fail(ErrorKind::value, kPagedAttention, "page_size must be at least 1; got {}", page_size);
}

std::int64_t PageTables::checked_batch(const char* where, std::int64_t batch_idx) const {
  const std::int64_t size = max_batch_size();
  if (batch_idx < -size || batch_idx >= size) {
    fail(ErrorKind::index, where, "batch_idx must be in {}..{}; got {}", -size, size - 1,
         batch_idx);
  }
  return batch_idx < 0 ? batch_idx + size : batch_idx;
}

std::int64_t* PageTables::row(const TensorView& table, std::int64_t batch_idx) const {
  return static_cast<std::int64_t*>(table.data()) + batch_idx * table.strides()[0];
}

std::int64_t PageTables::pages_wanted(std::int64_t batch_idx, std::int64_t seq_len) const {
  const std::int64_t b = checked_batch("reserve", batch_idx), has = *row(capacity_, b);
  if (seq_len <= has) return 0;
  if (has < 0) fail(ErrorKind::value, "reserve", "the capacity of {} is {}", b, has);
  return ceil_div(seq_len - has, page_size_);
}

void PageTables::add_pages(std::int64_t batch_idx, std::span<const std::int64_t> pages) {
  const std::int64_t b = checked_batch("reserve", batch_idx), step = page_table_.strides()[1];
  std::int64_t& capacity = *row(capacity_, b);
  const std::int64_t first = capacity / page_size_, count = std::ssize(pages);
  if (capacity < 0 || count > n_pages() - first) {
    fail(ErrorKind::value, "reserve", "{} pages after the first {} do not fit a table of {}", count,
         first, n_pages());
  }
  for (const std::int64_t page : pages) {
    if (page < 0 || page >= n_pages()) {
      fail(ErrorKind::index, "reserve", "empty_pages must be in 0..{}; got {}", n_pages() - 1,
           page);
    }
  }
  std::int64_t* const table = row(page_table_, b);
  std::int64_t* const logical = row(physical_to_logical_, b);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t page = pages[i];
    table[(first + i) * step] = page;
    logical[page * physical_to_logical_.strides()[1]] = first + i;
  }
  capacity += count * page_size_;
}

std::int64_t PageTables::page_count(const char* where, std::int64_t batch_idx) const {
  const std::int64_t* const table = row(page_table_, batch_idx);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n_pages(); ++i) {
    const std::int64_t page = table[i * page_table_.strides()[1]];
    if (page < -1 || page >= n_pages())
      fail(ErrorKind::index, where, "page_table must be in -1..{}; got {}", n_pages() - 1, page);
    count += page != -1;
  }
  return count;
}

std::vector<std::int64_t> PageTables::remove_pages(std::span<const std::int64_t> batch_idx) {
  std::int64_t count = 0;
  for (const std::int64_t b : batch_idx) count += page_count("erase", checked_batch("erase", b));
  std::vector<std::int64_t> pages;
  pages.reserve(count);
  for (const std::int64_t index : batch_idx) {
    const std::int64_t b = checked_batch("erase", index), step = page_table_.strides()[1];
    std::int64_t* const table = row(page_table_, b);
    std::int64_t* const logical = row(physical_to_logical_, b);
    for (std::int64_t i = 0; i < n_pages(); ++i) {
      const std::int64_t page = std::exchange(table[i * step], -1);
      if (page == -1) continue;
      pages.push_back(page);
      logical[page * physical_to_logical_.strides()[1]] = -1;
    }
    *row(capacity_, b) = 0;
  }
  return pages;
}

}  // namespace quire
