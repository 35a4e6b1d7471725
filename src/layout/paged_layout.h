// Keys in pages of a pool: [pages, heads, page_size, dim] tensors and, per sequence, the numbers of
// its pages in order. Adjacent pages become one span. A negative page number means a missing page;
// masks hide its keys. The caller guarantees that all others lie inside the pool. Layout layer.
#pragma once
#include <cstdint>
#include <vector>

#include "layout/key_layout.h"

namespace quire::layout {

/// Where the page numbers of a sequence are: i32, or i64 (`wide`), `step` elements apart.
struct PageRow {
  const void* pages = nullptr;
  std::int64_t step = 1;
  std::int64_t length = 0;  // keys
};

class PagedLayout final : public KeyLayout {
 public:
  /// Reads page numbers in place, each time spans are written.
  PagedLayout(std::int64_t page_size, bool wide, std::vector<PageRow> rows);
  /// From a whole table: `pages` holds its rows one after the other.
  PagedLayout(std::int64_t page_size, std::vector<std::int64_t> pages,
              const std::vector<std::int64_t>& lengths, bool heads_are_apart = false);

  std::int64_t length(std::int64_t sequence) const override { return row(sequence).length; }
  std::int64_t max_spans() const override { return most_pages_; }
  std::int64_t page_size() const override { return page_size_; }
  bool heads_are_apart() const override { return heads_are_apart_; }
  std::int64_t write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange range,
                           const KeyStrides& strides,
                           std::span<kernels::KeySpan> out) const override;
  bool may_share() const override { return rows_.size() > 1; }
  std::int64_t shared_keys(std::int64_t a, std::int64_t b) const override;
  std::int64_t place(std::int64_t sequence, std::int64_t key) const override;

 private:
  const PageRow& row(std::int64_t sequence) const { return rows_[sequence]; }
  template <class Id>
  std::int64_t write(const PageRow& row, KeyRange range, const KeyStrides& strides,
                     kernels::KeySpan* out) const;
  void count_pages();

  std::int64_t page_size_;
  bool wide_;
  bool heads_are_apart_ = false;
  std::vector<std::int64_t> owned_;
  std::vector<PageRow> rows_;
  std::int64_t most_pages_ = 0;
};

}  // namespace quire::layout
