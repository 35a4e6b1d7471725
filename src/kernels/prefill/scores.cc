// Scores of a tile of keys against a query tile: products, then the mask, or the score mod with the
// mask; hidden ones are -inf, and the largest visible one of each query is kept. Kernels layer.
#include <algorithm>
#include <type_traits>

#include "kernels/prefill/item.h"

namespace quire::kernels {
namespace {

// Keys between two calls of a score mod: their scores take 12 KiB, and 48 is a multiple of the 6
// rows of a product's block.
constexpr int kModRows = 48;

}  // namespace

// Scores of all groups that have something visible; `max` of what is visible.
template <class T>
void Prefill<T>::compute_scores(int i, int64_t key, int rows, const KeyTile& keys) noexcept {
  const TileActivity& activity = memory_.activity[i];
  std::fill_n(memory_.max, kQueryTile, kMinusInf<T>);
  if (call_.natural) begin_mods(i, key, rows);
  // Adjacent groups that see the same panels are one block.
  for (int g = 0; g < kKeyGroups;) {
    const GroupActivity block = activity.take_block(g, call_.natural);
    if (block.empty()) continue;
    const int first = block.row_begin;
    if (call_.natural)
      modified_scores(i, block, keys);
    else
      masked_scores(i, block, keys);
    hide_rows(block, first / kKeyGroup * kKeyGroup, first);
    const int group_end = (block.row_end + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
    hide_rows(block, block.row_end, std::min(rows, group_end));
  }
}

// Scaled form: raw scores, hidden ones -inf.
template <class T>
void Prefill<T>::masked_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept {
  scores_by_parts(i, block, keys, block.masked ? nullptr : memory_.max);
  if (block.masked) mask_scores(i, block);
}

// Raw scores, some rows at a time if something is prefetched in between.
template <class T>
void Prefill<T>::scores_by_parts(int i, const GroupActivity& block, const KeyTile& keys,
                                 T* max) noexcept {
  const int panels = block.panel_end - block.panel_begin;
  const int rows = block.row_end - block.row_begin, most = rows_between_asks(panels);
  GroupActivity part = block;
  int parts = (rows + most - 1) / most;  // about equally long, as in product_rows
  for (int row = block.row_begin; row < block.row_end; row = part.row_end, --parts) {
    part.row_begin = static_cast<int16_t>(row);
    part.row_end = static_cast<int16_t>(row + (block.row_end - row + parts - 1) / parts);
    raw_scores(i, part, keys, max);
    const int64_t work = int64_t{part.row_end - row} * panels;
    ask_ahead(work);
    ask_next_keys(work);
  }
}

// Natural form: scaled scores through the score mod, hidden ones -inf; a few rows at a time, so
// that they are still in L1.
template <class T>
void Prefill<T>::modified_scores(int i, const GroupActivity& block, const KeyTile& keys) noexcept {
  const ScoreTile scores{.data = memory_.scores,
                         .row_step = kPanel * static_cast<ptrdiff_t>(sizeof(T)),
                         .group_step = 0,
                         .panel_step = kScorePanelStep * static_cast<ptrdiff_t>(sizeof(T))};
  GroupActivity part = block;
  for (int row = block.row_begin; row < block.row_end; row = part.row_end) {
    part.row_begin = static_cast<int16_t>(row);
    part.row_end = static_cast<int16_t>(std::min<int>(row + kModRows, block.row_end));
    scores_by_parts(i, part, keys, nullptr);
    if (score_runner_.has_value()) {
      score_runner_->apply(scores, part.row_begin, part.row_end, memory_.max,
                           memory_.activity[i].full ? nullptr : words(i));
    } else {
      mask_scores(i, part);
    }
  }
}

template <class T>
void Prefill<T>::mask_scores(int i, const GroupActivity& block) noexcept {
  functions_.mask_scores({.scores = memory_.scores + block.panel_begin * kScorePanelStep +
                                    ptrdiff_t{block.row_begin} * kPanel,
                          .rows = block.row_end - block.row_begin,
                          .panels = block.panel_end - block.panel_begin,
                          .first_lane = block.panel_begin * kPanel,
                          .words = words(i) + block.row_begin,
                          .max = memory_.max + block.panel_begin * kPanel});
}

template <class T>
void Prefill<T>::raw_scores(int i, const GroupActivity& block, const KeyTile& keys,
                            T* max) noexcept {
  const T* const queries = memory_.queries + static_cast<size_t>(i) * memory_.query_size;
  T* const scores =
      memory_.scores + block.panel_begin * kScorePanelStep + ptrdiff_t{block.row_begin} * kPanel;
  T* const lanes_max = max == nullptr ? nullptr : max + block.panel_begin * kPanel;
  const int rows = block.row_end - block.row_begin, panels = block.panel_end - block.panel_begin;
  if (call_.pairs) {
    if constexpr (std::is_same_v<T, float>) {
      const auto function =
          computed_ ? tiles_of(call_)->finish_scores : pair_functions(call_).scores;
      function(
          {.keys = static_cast<const uint32_t*>(keys.keys) + block.row_begin * keys.key_step,
           .key_step = keys.key_step,
           .rows = rows,
           .dims = row_pairs(call_),
           .panels = panels,
           .queries = reinterpret_cast<const uint32_t*>(queries) + block.panel_begin * kPanel,
           .scores = scores,
           .max = lanes_max,
           .row_scales = keys.key_scales == nullptr ? nullptr : keys.key_scales + block.row_begin,
           .lane_scales = call_.integers
                              ? memory_.query_scales + i * kQueryTile + block.panel_begin * kPanel
                              : nullptr,
           .scaled = call_.natural,
           .scale = static_cast<float>(scale_)});
    }
    return;
  }
  functions_.scores({.keys = static_cast<const T*>(keys.keys) + block.row_begin * keys.key_step,
                     .key_step = keys.key_step,
                     .rows = rows,
                     .dims = call_.dims,
                     .panels = panels,
                     .queries = queries + block.panel_begin * kPanel,
                     .scores = scores,
                     .max = lanes_max,
                     .scaled = call_.natural,
                     .scale = scale_});
}

// Hides the rows of a group that no query sees and that were not computed, next to some that were.
template <class T>
void Prefill<T>::hide_rows(const GroupActivity& group, int row_begin, int row_end) noexcept {
  for (int panel = group.panel_begin; panel < group.panel_end && row_begin < row_end; ++panel) {
    T* const scores = memory_.scores + panel * kScorePanelStep;
    std::fill(scores + ptrdiff_t{row_begin} * kPanel, scores + ptrdiff_t{row_end} * kPanel,
              kMinusInf<T>);
  }
}

// Runs what the score mod computes once per tile; without one, sets all bits of a full tile for
// mask_scores.
template <class T>
void Prefill<T>::begin_mods(int i, int64_t key, int rows) noexcept {
  if (!score_runner_.has_value()) {
    if (memory_.activity[i].full) std::fill_n(words(i), rows, ~uint64_t{0});
    return;
  }
  score_runner_->begin(coords_of(item_.tiles[i], key, rows));
}

template void Prefill<float>::compute_scores(int, int64_t, int, const KeyTile&) noexcept;
template void Prefill<double>::compute_scores(int, int64_t, int, const KeyTile&) noexcept;

}  // namespace quire::kernels
