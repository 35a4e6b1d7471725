// The loop over the key tiles of a chunk: visibility, weights, gradients of scores and the three
// sums; load.cc moves rows in and out. All arithmetic is in the primitives of the ISA
// (prefill/forward_functions.h, functions.h). Kernels layer.
#include "kernels/backward/backward.h"

#include <algorithm>
#include <type_traits>

#include "kernels/backward/spoiled.h"
#include "kernels/bit_range.h"
#include "kernels/dropout.h"

namespace quire::kernels {
namespace {

int tile_keys(const ForwardCall& call) {
  return call.dropout.p > 0 ? kDropoutKeys : kBackwardTileKeys;
}
static_assert(kBackwardTileKeys % kKeyGroup == 0 && kDropoutKeys % kKeyGroup == 0);

}  // namespace

int backward_chunk_keys(int dims, int value_dims) {
  const int both = dims + value_dims;
  return both <= 256 ? 384 : both <= 512 ? 192 : 64;
}

std::size_t backward_scratch_bytes(const BackwardCall& call) {
  ScratchLayout layout(nullptr);
  if (call.forward.f64)
    BackwardMemory<double>(call, layout);
  else
    BackwardMemory<float>(call, layout);
  return layout.bytes();
}

template <class T>
BackwardChunk<T>::BackwardChunk(const BackwardCall& call, std::span<const KeySpan> keys,
                                const ChunkPlace& place, GradientRunner* gradient, void* scratch)
    : call_(call),
      forward_(call.forward),
      functions_(forward_functions<T>(*call.forward.table)),
      backward_(backward_functions<T>(*call.forward.table)),
      gradient_(gradient),
      memory_([&] {
        ScratchLayout layout(scratch);
        return BackwardMemory<T>(call, layout);
      }()),
      scope_(call.forward),
      begin_(place.begin),
      count_(place.count),
      scale_(static_cast<T>(call.forward.scale)),
      wants_modified_(call.gradient != nullptr &&
                      (call.gradient->slope != SlopeKind::kOne || !call.gradient->sites.empty())) {
  if (forward_.dropout.p > 0) dropout_ = dropout_rule(forward_.dropout);
  for (const KeySpan& span : keys) load_keys(span);
  find_spoiled_keys();
  std::fill_n(memory_.d_keys, count_ * memory_.step, T(0));
  std::fill_n(memory_.d_values, count_ * memory_.value_step, T(0));
}

template <class T>
void BackwardChunk<T>::add(const BackwardTile& tile) noexcept {
  tile_ = &tile;
  loaded_ = false;
  if (call_.shares_keys) begin_head(tile.at);
  const int step = tile_keys(forward_);
  for (int first = 0; first < count_; first += step)
    run_tile(first, std::min(step, count_ - first));
  if (!call_.wants_q) return;
  tile.turn->wait_for(tile.number);
  if (loaded_) {
    backward_.add_rows({.from = memory_.d_queries,
                        .from_step = memory_.step,
                        .rows = tile.at.queries,
                        .columns = static_cast<int>(whole_panels(forward_.dims)),
                        .to = static_cast<T*>(tile.d_q),
                        .to_step = tile.d_q_step,
                        .scale = scale_});
  }
  tile.turn->pass(tile.number);
}

template <class T>
void BackwardChunk<T>::run_tile(int first, int rows) noexcept {
  const TileActivity activity = look(first, rows);
  if (!activity.any) return;
  if (!loaded_) load_queries();
  list_blocks(activity);
  if (gradient_ != nullptr) begin_mod(first, rows);
  const bool differentiates = call_.wants_q || call_.d_k.data != nullptr ||
                              (call_.gradient != nullptr && !call_.gradient->sites.empty());
  for (int i = 0; i < block_count_; ++i) weigh(blocks_[i], first);
  bring_next();
  for (int i = 0; i < block_count_ && differentiates; ++i) differentiate(blocks_[i], first);
  bring_next();
  if (call_.d_v.data != nullptr && call_.d_out != nullptr)
    for (int i = 0; i < block_count_; ++i) add_values(blocks_[i], first);
  bring_next();
  if (call_.d_k.data != nullptr)
    for (int i = 0; i < block_count_; ++i) add_keys(blocks_[i], first);
  bring_next();
  if (call_.wants_q) add_queries(first);
}

// Rows that saw nothing in the forward pass see nothing here. Where a key is not finite, lanes
// without a query become NaN; the words hide them.
template <class T>
TileActivity BackwardChunk<T>::look(int first, int rows) noexcept {
  const QueryTile& at = tile_->at;
  const uint64_t existing = bits_between(0, at.queries);
  const TileActivity activity = memory_.visibility.look(at, begin_ + first, rows, memory_.words);
  if (!activity.any) return activity;
  spoiled_tile_ = has_spoiled_keys(first, rows);
  const bool all_live = (tile_->live & existing) == existing;
  is_full_ = activity.full && all_live && !spoiled_tile_;
  if (all_live && !spoiled_tile_) return activity;
  if (activity.full) std::fill_n(memory_.words, rows, existing);
  for (int row = 0; row < rows; ++row) memory_.words[row] &= tile_->live & existing;
  return find_activity(memory_.words, rows, at.queries);
}

// Adjacent groups that see the same panels are one block.
template <class T>
void BackwardChunk<T>::list_blocks(const TileActivity& activity) noexcept {
  block_count_ = 0;
  for (const GroupActivity& group : activity.groups) {
    if (group.empty()) continue;
    if (block_count_ > 0) {
      GroupActivity& last = blocks_[block_count_ - 1].of;
      if (last.row_end == group.row_begin && last.panel_begin == group.panel_begin &&
          last.panel_end == group.panel_end && last.masked == group.masked) {
        last.row_end = group.row_end;
        continue;
      }
    }
    blocks_[block_count_++].of = group;
  }
  for (int i = 0; i < block_count_; ++i) {
    const GroupActivity& of = blocks_[i].of;
    blocks_[i].shape = {
        .rows = of.row_end - of.row_begin,
        .panels = of.panel_end - of.panel_begin,
        .first_lane = of.panel_begin * kPanel,
        .words = of.masked || spoiled_tile_ ? memory_.words + of.row_begin : nullptr};
  }
}

namespace {

// Where a block begins in a tile.
ptrdiff_t block_offset(const GroupActivity& of) {
  return of.panel_begin * kScorePanelStep + ptrdiff_t{of.row_begin} * kPanel;
}

template <class T>
ScoreTile tile_at(T* data) {
  return {.data = data,
          .row_step = kPanel * static_cast<ptrdiff_t>(sizeof(T)),
          .group_step = 0,
          .panel_step = kScorePanelStep * static_cast<ptrdiff_t>(sizeof(T))};
}

}  // namespace

template <class T>
void BackwardChunk<T>::begin_mod(int first, int rows) noexcept {
  gradient_->begin(coords_of(tile_->at, begin_ + first, rows));
}

template <class T>
void BackwardChunk<T>::weigh(const Block& block, int first) noexcept {
  const int row = first + block.of.row_begin, lane = block.shape.first_lane;
  T* const scores = memory_.weights + block_offset(block.of);
  if (forward_.pairs) {
    if constexpr (std::is_same_v<T, float>) {
      const int pairs = row_pairs(forward_);
      forward_.table->pairs->scores(
          {.keys = memory_.key_pairs + ptrdiff_t{row} * pairs,
           .key_step = pairs,
           .rows = block.shape.rows,
           .dims = pairs,
           .panels = block.shape.panels,
           .queries = reinterpret_cast<const uint32_t*>(memory_.query_columns) + lane,
           .scores = scores,
           .scaled = true,
           .scale = scale_});
    }
  } else {
    functions_.scores({.keys = memory_.keys + row * memory_.step,
                       .key_step = memory_.step,
                       .rows = block.shape.rows,
                       .dims = forward_.dims,
                       .panels = block.shape.panels,
                       .queries = memory_.query_columns + lane,
                       .scores = scores,
                       .scaled = true,
                       .scale = scale_});
  }
  if (gradient_ != nullptr)
    gradient_->apply(tile_at(memory_.weights), tile_at(memory_.slopes), block.of.row_begin,
                     block.of.row_end, is_full_ ? nullptr : memory_.words);
  if (forward_.weights != WeightRule::kSoftmax)
    return backward_.formula_weights({.block = block.shape,
                                      .weights = scores,
                                      .inverse = static_cast<const T*>(tile_->lse) + lane});
  backward_.weights(
      {.block = block.shape, .scores = scores, .lse = static_cast<const T*>(tile_->lse) + lane});
}

template <class T>
void BackwardChunk<T>::differentiate(const Block& block, int first) noexcept {
  const int row = first + block.of.row_begin, lane = block.shape.first_lane;
  T* const gradients = memory_.gradients + block_offset(block.of);
  T* const weights = memory_.weights + block_offset(block.of);
  if (call_.d_out == nullptr) {
    for (int panel = 0; panel < block.shape.panels; ++panel)
      std::fill_n(gradients + panel * kScorePanelStep, block.shape.rows * kPanel, T(0));
  } else {
    functions_.scores({.keys = memory_.values + row * memory_.value_step,
                       .key_step = memory_.value_step,
                       .rows = block.shape.rows,
                       .dims = forward_.value_dims,
                       .panels = block.shape.panels,
                       .queries = memory_.d_out_columns + lane,
                       .scores = gradients});
    if (forward_.dropout.p > 0) drop(block, first, memory_.gradients);
  }
  const T* const delta = static_cast<const T*>(tile_->delta) + lane;
  if (forward_.weights == WeightRule::kSoftmax)
    backward_.score_gradients({.block = block.shape,
                               .gradients = gradients,
                               .weights = weights,
                               .delta = delta,
                               .only_weighted = wants_modified_});
  else
    backward_.formula_gradients({.block = block.shape,
                                 .gradients = gradients,
                                 .inverse = static_cast<const T*>(tile_->lse) + lane,
                                 .delta = delta});
  if (wants_modified_) differentiate_mod(block);
}

// Takes gradients of modified scores to the captured buffers and to the scores before the mod.
template <class T>
void BackwardChunk<T>::differentiate_mod(const Block& block) noexcept {
  gradient_->collect(tile_at(memory_.gradients), block.of.row_begin, block.of.row_end,
                     block.of.panel_begin, block.of.panel_end);
  const SlopeKind kind = call_.gradient->slope;
  if (kind == SlopeKind::kOne) return;
  backward_.apply_slopes(
      {.block = block.shape,
       .gradients = memory_.gradients + block_offset(block.of),
       .slopes = kind == SlopeKind::kElement ? memory_.slopes + block_offset(block.of) : nullptr,
       .uniform = kind == SlopeKind::kUniform ? static_cast<T>(gradient_->uniform_slope()) : T(1)});
}

// Applies dropout to whole groups of 16 keys, which a block consists of.
template <class T>
void BackwardChunk<T>::drop(const Block& block, int first, T* values) noexcept {
  const int group_begin = block.of.row_begin / kKeyGroup;
  const int group_end = (block.of.row_end + kKeyGroup - 1) / kKeyGroup;
  const uint32_t groups = (uint32_t{1} << group_end) - (uint32_t{1} << group_begin);
  const QueryTile& at = tile_->at;
  for (int panel = block.of.panel_begin; panel < block.of.panel_end; ++panel) {
    functions_.drop(
        {.weights = values + panel * kScorePanelStep,
         .groups = groups,
         .rows = block.of.row_end,
         .rule = &dropout_,
         .place = dropout_place(at.b, at.h, at.q_idx + panel * kPanel, begin_ + first)});
  }
}

template <class T>
void BackwardChunk<T>::add_values(const Block& block, int first) noexcept {
  if (forward_.dropout.p > 0) drop(block, first, memory_.weights);
  const AddToKeysArgs<T> args{
      .weights = memory_.weights + block_offset(block.of),
      .first_panel = block.of.panel_begin,
      .keys = block.shape.rows,
      .panels = block.shape.panels,
      .columns = static_cast<int>(whole_panels(forward_.value_dims)),
      .rows = memory_.d_outs + block.shape.first_lane * memory_.value_step,
      .row_step = memory_.value_step,
      .out = memory_.d_values + (first + block.of.row_begin) * memory_.value_step,
      .out_step = memory_.value_step};
  spoiled_d_out_ != 0 ? add_to_keys_weighted(args) : backward_.add_to_keys(args);
}

template <class T>
void BackwardChunk<T>::add_keys(const Block& block, int first) noexcept {
  const AddToKeysArgs<T> args{.weights = memory_.gradients + block_offset(block.of),
                              .first_panel = block.of.panel_begin,
                              .keys = block.shape.rows,
                              .panels = block.shape.panels,
                              .columns = static_cast<int>(whole_panels(forward_.dims)),
                              .rows = memory_.queries + block.shape.first_lane * memory_.step,
                              .row_step = memory_.step,
                              .out = memory_.d_keys + (first + block.of.row_begin) * memory_.step,
                              .out_step = memory_.step};
  spoiled_q_ != 0 ? add_to_keys_weighted(args) : backward_.add_to_keys(args);
}

// Panel by panel, one chain over the keys of the tile that the panel sees.
template <class T>
void BackwardChunk<T>::add_queries(int first) noexcept {
  const QueryTile& at = tile_->at;
  for (int panel = 0; panel * kPanel < at.queries; ++panel) {
    ChainRun runs[kKeyGroups];
    int count = 0;
    bool spoiled = false;
    for (int i = 0; i < block_count_; ++i) {
      const GroupActivity& of = blocks_[i].of;
      if (panel < of.panel_begin || panel >= of.panel_end) continue;
      spoiled |= has_spoiled_keys(first + of.row_begin, of.row_end - of.row_begin);
      if (count > 0 && runs[count - 1].weight_row + runs[count - 1].rows == of.row_begin)
        runs[count - 1].rows += of.row_end - of.row_begin;
      else
        runs[count++] = {of.row_begin, first + of.row_begin, of.row_end - of.row_begin};
    }
    if (count == 0) continue;
    const AddToQueriesArgs<T> args{.runs = runs,
                                   .run_count = count,
                                   .weights = memory_.gradients + panel * kScorePanelStep,
                                   .queries = std::min(kPanel, at.queries - panel * kPanel),
                                   .columns = static_cast<int>(whole_panels(forward_.dims)),
                                   .rows = memory_.keys,
                                   .row_step = memory_.step,
                                   .out = memory_.d_queries + panel * kPanel * memory_.step,
                                   .out_step = memory_.step};
    spoiled ? add_to_queries_weighted(args) : backward_.add_to_queries(args);
  }
}

template <class T>
bool BackwardChunk<T>::has_spoiled_keys(int first, int rows) const noexcept {
  const bool* const spoiled = memory_.spoiled_keys + first;
  return std::any_of(spoiled, spoiled + rows, [](bool is) { return is; });
}

template <class T>
void BackwardChunk<T>::report(TileFault& fault) const noexcept {
  const TileFault* const found = memory_.visibility.fault();
  if (found != nullptr && found->before(fault)) fault = *found;
}

template class BackwardChunk<float>;
template class BackwardChunk<double>;

}  // namespace quire::kernels
