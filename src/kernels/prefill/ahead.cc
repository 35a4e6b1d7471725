// A tile of keys with tile registers: while the softmax of a query tile runs on vectors, the scores
// of the next query tile and the outputs of the one before are multiplied. What is computed, and in
// which order each row's numbers are added up, is as in prefill.cc. Kernels layer.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/prefill/item.h"

namespace quire::kernels {
namespace {

constexpr int kBlock = 32;                   // keys, or columns, of a product, and keys of a step
constexpr ptrdiff_t kGroupRow = kPanel * 4;  // bytes of 16 numbers, or pairs
constexpr ptrdiff_t kGroupSize = kKeyGroup * kGroupRow;  // of 16 x 16

// The steps of 32 keys in which one of two panels sees something.
struct Steps {
  int begin = 0, end = 0;
  explicit Steps(uint32_t groups) {
    if (groups == 0) return;
    begin = std::countr_zero(groups) / 2;
    end = (std::bit_width(groups) + 1) / 2;
  }
};

}  // namespace

template <class T>
void Prefill<T>::run_ahead(int64_t key, int rows, const KeyTile& keys) noexcept {
  const PairTiles& tiles = *tiles_of(call_);
  TileProducts& products = *memory_.products;
  products.count = products.at = products.step = 0;
  int active[kMaxQueryTiles] = {}, count = 0;
  for (int i = 0; i < item_.tile_count; ++i)
    if (memory_.activity[i].any) active[count++] = i;
  list_scores(active[0], keys);
  tiles.run(products);
  computed_ = true;
  Weighed last;
  for (int j = 0; j < count; ++j) {
    std::swap(memory_.scores, memory_.next_scores);
    list_outputs(last, keys);
    if (j + 1 < count) list_scores(active[j + 1], keys);
    compute_scores(active[j], key, rows, keys);
    const Weighed now = weigh(active[j], key, rows);
    tiles.run(products);
    add_outputs(last);
    last = now;
    std::swap(memory_.pairs, memory_.last_pairs);
    std::swap(memory_.factor, memory_.last_factor);
  }
  list_outputs(last, keys);
  tiles.run(products);
  add_outputs(last);
  computed_ = false;
}

// Scores of query tile i to next_scores, before scales, masks and mods. Products of two groups of
// keys by two panels are queued, the rest is computed at once. (One panel of a pair may not be
// wanted, or not exist: there is memory for it.)
template <class T>
void Prefill<T>::list_scores(int i, const KeyTile& keys) noexcept {
  const auto* const queries = reinterpret_cast<const uint32_t*>(
      memory_.queries + static_cast<size_t>(i) * memory_.query_size);
  const auto* const all_keys = static_cast<const uint32_t*>(keys.keys);
  auto* const scores = reinterpret_cast<float*>(memory_.next_scores);
  const int pairs = row_pairs(call_);
  TileProducts& products = *memory_.products;
  for (int g = 0; g < kKeyGroups;) {
    const GroupActivity block = memory_.activity[i].take_block(g, true);
    int row = block.row_begin;
    for (; row + kBlock <= block.row_end; row += kBlock) {
      for (int panel = block.panel_begin / 2 * 2; panel < block.panel_end; panel += 2) {
        products.list[products.count++] = {
            .a = reinterpret_cast<const char*>(all_keys + row * keys.key_step),
            .a_row = keys.key_step * 4,
            .a_next = keys.key_step * 4 * kKeyGroup,
            .b = reinterpret_cast<const char*>(queries + panel * kPanel),
            .b_row = kQueryTile * 4,
            .b_next = kGroupRow,
            .steps = pairs / kPanel,
            .out = reinterpret_cast<char*>(scores + panel * kScorePanelStep + row * kPanel),
            .a_out = kGroupSize,
            .b_out = kScorePanelStep * 4};
      }
    }
    if (row >= block.row_end) continue;
    call_.table->pairs->scores(
        {.keys = all_keys + row * keys.key_step,
         .key_step = keys.key_step,
         .rows = block.row_end - row,
         .dims = pairs,
         .panels = block.panel_end - block.panel_begin,
         .queries = queries + block.panel_begin * kPanel,
         .scores = scores + block.panel_begin * kScorePanelStep + row * kPanel});
  }
}

// Values times the weights in last_pairs.
template <class T>
void Prefill<T>::list_outputs(const Weighed& last, const KeyTile& keys) noexcept {
  if (last.tile < 0) return;
  TileProducts& products = *memory_.products;
  const auto* const values = static_cast<const char*>(keys.values);
  const int columns = tile_columns(call_.value_dims);
  const ptrdiff_t value_row = keys.value_step * 4;
  for (int column = 0; column < columns; column += kBlock) {
    for (int panel = 0; panel < kQueryPanels; panel += 2) {
      const Steps steps(last.groups[panel] | last.groups[panel + 1]);
      if (steps.begin == steps.end) continue;
      const uint32_t* const pairs = memory_.last_pairs + panel * kPairPanelStep;
      T* const out = memory_.sums + (ptrdiff_t{panel} * columns + column) * kPanel;
      products.list[products.count++] = {
          .a = values + column * value_row + steps.begin * 2 * kBlock,
          .a_row = value_row,
          .a_next = value_row * kPanel,
          .b = reinterpret_cast<const char*>(pairs) + steps.begin * kGroupSize,
          .b_row = kGroupRow,
          .b_next = kPairPanelStep * 4,
          .steps = steps.end - steps.begin,
          .out = reinterpret_cast<char*>(out),
          .a_out = kGroupSize,
          .b_out = ptrdiff_t{columns} * kGroupRow};
    }
  }
}

// Weights of a query tile to `pairs`; groups of which a panel sees nothing get weight 0.
template <class T>
typename Prefill<T>::Weighed Prefill<T>::weigh(int i, int64_t key, int rows) noexcept {
  Weighed now;
  now.tile = i;
  for (int panel = 0; panel < panels_of(item_.tiles[i]); ++panel)
    now.groups[panel] = groups_of(i, panel);
  now.fresh = ~live_[i];
  for (int panel = 0; panel < kQueryPanels; ++panel) {
    const uint32_t groups = now.groups[panel];
    if (groups == 0) continue;
    const Steps steps(groups | now.groups[panel ^ 1]);
    uint32_t* const pairs = memory_.pairs + panel * kPairPanelStep;
    for (int g = 2 * steps.begin; g < 2 * steps.end; ++g)
      if ((groups >> g & 1) == 0) std::memset(pairs + g * kGroupSize / 8, 0, kGroupSize / 2);
    weigh_panel(i, panel, key, rows, groups);
    live_[i] |= uint32_t{1} << panel;
  }
  return now;
}

template <class T>
void Prefill<T>::weigh_panel(int i, int panel, int64_t key, int rows, uint32_t groups) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    const SoftmaxArgs<T> args = softmax_args(i, panel, rows, groups);
    uint32_t* const pairs = memory_.pairs + panel * kPairPanelStep;
    if (call_.weights == WeightRule::kSoftmax && !drops_)
      return tiles_of(call_)->softmax(args, pairs, *memory_.products);
    weigh_in_place(i, panel, key, args);
    for (uint32_t left = groups; left != 0; left &= left - 1) {
      const int first = std::countr_zero(left) * kKeyGroup;
      float* const weights = args.scores + first * kPanel;
      std::fill(weights + std::min(kKeyGroup, rows - first) * kPanel, weights + kKeyGroup * kPanel,
                0.f);
      const ChainRun run{.rows = kKeyGroup};
      pair_functions(call_).pair_weights({.weights = weights, .runs = &run, .run_count = 1});
      std::memcpy(pairs + first / 2 * kPanel, weights, kGroupSize / 2);
    }
  }
}

template <class T>
void Prefill<T>::add_outputs(const Weighed& last) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    const int columns = tile_columns(call_.value_dims);
    for (int panel = 0; panel < kQueryPanels && last.tile >= 0; ++panel) {
      if (last.groups[panel] == 0) continue;
      const bool fresh = (last.fresh >> panel & 1) != 0;
      tiles_of(call_)->add_sums(
          {.sums = memory_.sums + ptrdiff_t{panel} * columns * kPanel,
           .factor = fresh ? nullptr : memory_.last_factor + panel * kPanel,
           .columns = columns_,
           .out = current(last.tile).o + ptrdiff_t{panel} * kPanel * columns_});
    }
  }
}

template void Prefill<float>::run_ahead(int64_t, int, const KeyTile&) noexcept;
template void Prefill<double>::run_ahead(int64_t, int, const KeyTile&) noexcept;

}  // namespace quire::kernels
