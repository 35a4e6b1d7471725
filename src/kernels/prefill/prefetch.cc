// What prefill prefetches between its products: memory of the next item, and, where few queries
// walk over keys that are in no cache, the next tile of keys. Changes no result. Kernels layer.
#include <algorithm>

#include "kernels/prefill/item.h"
#include "kernels/prefill/key_tile.h"

namespace quire::kernels {
namespace {

// Panels of scores between two prefetches for the next item: a register block.
constexpr int kAskPanels = 24;
// Where that would ask for fewer lines than these, products are not cut so small.
constexpr int kAskLines = 16;
// Reading or writing the queries of a panel takes as long as this many keys of its scores.
constexpr int kCopyKeys = 8;
// The same for the next keys, and the most keys: fewer lines at a time. That is less than a
// register block of 64 queries, and yet faster.
constexpr int kNextPanels = 16, kNextRows = 8;
// With more query tiles a tile of keys is used long enough for the hardware's prefetching.
constexpr int kFewTiles = 4;

}  // namespace

// Keys times panels of the scores of this tile of keys.
template <class T>
int64_t Prefill<T>::panels_of_scores() const noexcept {
  int64_t panels = 0;
  for (int i = 0; i < item_.tile_count; ++i)
    for (const GroupActivity& group : memory_.activity[i].groups)
      panels += (group.row_end - group.row_begin) * (group.panel_end - group.panel_begin);
  return panels;
}

// Spreads the remaining prefetches over the work on this tile of keys and on those after it.
template <class T>
void Prefill<T>::share_out(int rows) noexcept {
  int64_t work = 0;
  for (int i = 0; i < item_.tile_count; ++i)
    work += (loaded_[i] ? 1 : 2) * kCopyKeys * panels_of(item_.tiles[i]);
  const double tiles = std::max(static_cast<double>(item_.keys.length) / rows, 1.0);
  const double products = 2 * tiles * static_cast<double>(panels_of_scores());
  lines_per_work_ =
      static_cast<double>(item_.ahead->lines()) / (products + static_cast<double>(work));
}

// Whether outputs that take this much work are worth cutting for prefetches.
template <class T>
bool Prefill<T>::asks_between(int64_t work) const noexcept {
  return item_.ahead != nullptr && lines_per_work_ * static_cast<double>(work) > kAskLines &&
         item_.ahead->lines() > 0;
}

// Prefetches when the queries of a tile were read.
template <class T>
void Prefill<T>::ask_while_copying(int i) noexcept {
  ask_ahead(kCopyKeys * panels_of(item_.tiles[i]));
}

// Prefetches after scores or outputs; `work`: keys times panels of scores.
template <class T>
void Prefill<T>::ask_ahead(int64_t work) noexcept {
  if (item_.ahead == nullptr) return;
  lines_due_ += lines_per_work_ * static_cast<double>(work);
  const auto lines = static_cast<int64_t>(lines_due_);
  lines_due_ -= static_cast<double>(lines);
  item_.ahead->ask(lines);
}

// Whether rows are numbers side by side.
template <class T>
bool Prefill<T>::keys_lie_together() const noexcept {
  return call_.k_rows.column_step == 1 && call_.v_rows.column_step == 1 &&
         !is_coded(call_.k_coding) && !is_coded(call_.v_coding);
}

// Lists the keys and values that follow from `key` on: a tile of them, as far as the list reaches.
// All are prefetched between scores, whose operands lie together, and none between outputs.
template <class T>
void Prefill<T>::plan_next_keys(int64_t key) noexcept {
  next_keys_.clear();
  next_lines_due_ = 0;
  if (item_.tile_count > kFewTiles || !keys_lie_together()) return;
  const KeySpan* const last = item_.keys.spans + item_.keys.span_count;
  const int64_t end = std::min<int64_t>(key + kTileKeys, item_.keys.length);
  while (key < end && key < last[-1].end && !next_keys_.is_full()) {
    const KeySpan& span = find_span(item_.keys, key);
    const int64_t rows = std::min(end, span.end) - key;
    const auto add = [&](const void* data, const ForwardTensor& of, int64_t offset, int columns) {
      const auto size = static_cast<int64_t>(dtype_size(of.dtype));
      const int64_t at = (offset + (key - span.begin) * of.row_step) * size;
      next_keys_.add({.at = static_cast<const char*>(data) + at,
                      .step = static_cast<ptrdiff_t>(of.row_step * size),
                      .rows = rows,
                      .bytes = columns * size,
                      .is_written = false});
    };
    add(call_.k, call_.k_rows, span.key_offset, call_.dims);
    if (!call_.v_in_k) add(call_.v, call_.v_rows, span.value_offset, call_.value_dims);
    key += rows;
  }
  next_lines_per_work_ =
      static_cast<double>(next_keys_.lines()) / static_cast<double>(panels_of_scores());
}

template <class T>
void Prefill<T>::ask_next_keys(int64_t work) noexcept {
  if (next_keys_.lines() == 0) return;
  next_lines_due_ += next_lines_per_work_ * static_cast<double>(work);
  const auto lines = static_cast<int64_t>(next_lines_due_);
  next_lines_due_ -= static_cast<double>(lines);
  next_keys_.ask(lines);
}

// Keys whose scores are computed between two prefetches.
template <class T>
int Prefill<T>::rows_between_asks(int panels) const noexcept {
  if (next_keys_.lines() > 0) return std::min(kNextPanels / panels, kNextRows);
  if (item_.ahead == nullptr || item_.ahead->lines() == 0) return kTileKeys;
  const double for_some = kAskLines / lines_per_work_;
  return std::max(kAskPanels, static_cast<int>(std::min<double>(for_some, kTileKeys))) / panels;
}

template void Prefill<float>::share_out(int) noexcept;
template void Prefill<double>::share_out(int) noexcept;
template bool Prefill<float>::asks_between(int64_t) const noexcept;
template bool Prefill<double>::asks_between(int64_t) const noexcept;
template void Prefill<float>::ask_while_copying(int) noexcept;
template void Prefill<double>::ask_while_copying(int) noexcept;
template void Prefill<float>::ask_ahead(int64_t) noexcept;
template void Prefill<double>::ask_ahead(int64_t) noexcept;
template void Prefill<float>::plan_next_keys(int64_t) noexcept;
template void Prefill<double>::plan_next_keys(int64_t) noexcept;
template void Prefill<float>::ask_next_keys(int64_t) noexcept;
template void Prefill<double>::ask_next_keys(int64_t) noexcept;
template int Prefill<float>::rows_between_asks(int) const noexcept;
template int Prefill<double>::rows_between_asks(int) const noexcept;

}  // namespace quire::kernels
