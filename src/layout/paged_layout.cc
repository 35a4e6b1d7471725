// Converts pages to spans. Layout layer.
#include "layout/paged_layout.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "runtime/ceil_div.h"

namespace quire::layout {
namespace {

template <class Id>
std::int64_t equal_pages(const PageRow& a, const PageRow& b, std::int64_t pages) {
  const Id* const x = static_cast<const Id*>(a.pages);
  const Id* const y = static_cast<const Id*>(b.pages);
  std::int64_t i = 0;
  if (a.step == 1 && b.step == 1) {  // 16 at a time: shared prefixes are long
    constexpr std::int64_t kAtOnce = 16;
    while (i + kAtOnce <= pages && std::memcmp(x + i, y + i, kAtOnce * sizeof(Id)) == 0)
      i += kAtOnce;
  }
  while (i < pages && x[i * a.step] == y[i * b.step]) ++i;
  return i;
}

}  // namespace

PagedLayout::PagedLayout(std::int64_t page_size, bool wide, std::vector<PageRow> rows)
    : page_size_(page_size), wide_(wide), rows_(std::move(rows)) {
  count_pages();
}

PagedLayout::PagedLayout(std::int64_t page_size, std::vector<std::int64_t> pages,
                         const std::vector<std::int64_t>& lengths, bool heads_are_apart)
    : page_size_(page_size),
      wide_(true),
      heads_are_apart_(heads_are_apart),
      owned_(std::move(pages)) {
  rows_.reserve(lengths.size());
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    rows_.push_back({.pages = owned_.data() + first, .length = length});
    first += ceil_div(length, page_size_);
  }
  assert(first <= static_cast<std::int64_t>(owned_.size()));
  count_pages();
}

void PagedLayout::count_pages() {
  for (const PageRow& row : rows_)
    most_pages_ = std::max(most_pages_, ceil_div(row.length, page_size_));
}

template <class Id>
std::int64_t PagedLayout::write(const PageRow& row, KeyRange range, const KeyStrides& strides,
                                kernels::KeySpan* out) const {
  const Id* const ids = static_cast<const Id*>(row.pages);
  const std::int64_t k_size = page_size_ * strides.k_row, v_size = page_size_ * strides.v_row;
  kernels::KeySpan* span = out;
  // Where a page would have to be to continue the last span.
  std::int64_t k_next = 0, v_next = 0, k_scale_next = 0, v_scale_next = 0;
  bool follows = false;
  for (std::int64_t page = range.begin / page_size_; page * page_size_ < range.end; ++page) {
    // A missing page gets an address too, which is never read.
    const std::int64_t number = ids[page * row.step];
    const std::int64_t id = std::max<std::int64_t>(number, 0);
    const std::int64_t k = id * strides.k_batch, v = id * strides.v_batch;
    const std::int64_t k_scale = strides.k_scales.at(id, 0, 0);
    const std::int64_t v_scale = strides.v_scales.at(id, 0, 0);
    const std::int64_t end = std::min((page + 1) * page_size_, row.length);
    if (follows && number >= 0 && k == k_next && v == v_next && k_scale == k_scale_next &&
        v_scale == v_scale_next) {
      span[-1].end = end;
    } else {
      *span++ = {.begin = page * page_size_,
                 .end = end,
                 .key_offset = k,
                 .value_offset = v,
                 .key_scale_offset = k_scale,
                 .value_scale_offset = v_scale};
    }
    follows = number >= 0;
    k_next = k + k_size;
    v_next = v + v_size;
    k_scale_next = k_scale + strides.k_scales.at(0, 0, page_size_);
    v_scale_next = v_scale + strides.v_scales.at(0, 0, page_size_);
  }
  return span - out;
}

std::int64_t PagedLayout::write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange range,
                                      const KeyStrides& strides,
                                      std::span<kernels::KeySpan> out) const {
  const PageRow& from = row(sequence);
  range.begin = std::max<std::int64_t>(range.begin, 0);
  range.end = std::min(range.end, from.length);
  if (range.begin >= range.end) return 0;
  const std::int64_t count = wide_ ? write<std::int64_t>(from, range, strides, out.data())
                                   : write<std::int32_t>(from, range, strides, out.data());
  const std::int64_t k_head = kv_head * strides.k_head, v_head = kv_head * strides.v_head;
  const std::int64_t k_scale_head = strides.k_scales.at(0, kv_head, 0);
  const std::int64_t v_scale_head = strides.v_scales.at(0, kv_head, 0);
  for (kernels::KeySpan& span : out.first(count)) {
    span.key_offset += k_head;
    span.value_offset += v_head;
    span.key_scale_offset += k_scale_head;
    span.value_scale_offset += v_scale_head;
  }
  return count;
}

std::int64_t PagedLayout::place(std::int64_t sequence, std::int64_t key) const {
  const PageRow& of = row(sequence);
  const std::int64_t at = key / page_size_ * of.step;
  return wide_ ? static_cast<const std::int64_t*>(of.pages)[at]
               : static_cast<const std::int32_t*>(of.pages)[at];
}

std::int64_t PagedLayout::shared_keys(std::int64_t a, std::int64_t b) const {
  const PageRow &x = row(a), &y = row(b);
  const std::int64_t keys = std::min(x.length, y.length), pages = ceil_div(keys, page_size_);
  const std::int64_t equal =
      wide_ ? equal_pages<std::int64_t>(x, y, pages) : equal_pages<std::int32_t>(x, y, pages);
  return std::min(equal * page_size_, keys);
}

}  // namespace quire::layout
