// Private sums of a head: cleared, indexed, filled, and added to the gradients in turn. No SIMD.
// Kernels layer.
#include "kernels/backward/gradient_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/backward/gradient_merge.h"
#include "kernels/backward/gradient_products.h"
#include "kernels/backward/gradient_sums.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

GradientMemory take_memory(const GradientProgram& program, const GradientSizes& sizes,
                           void* scratch) {
  ScratchLayout layout(scratch);
  return GradientMemory(program, sizes, layout);
}

const TileFunctions& tile_functions(const KernelTable& table, bool f64) {
  return f64 ? *table.tile_f64 : *table.tile_f32;
}

bool is_direct(GradientPattern pattern) {
  return pattern == GradientPattern::kOwned || pattern == GradientPattern::kShared;
}

}  // namespace

GradientRunner::GradientRunner(const GradientProgram& program, const KernelTable& table,
                               const GradientTargets& targets, const GradientSizes& sizes,
                               void* scratch) noexcept
    : program_(program),
      table_(table),
      targets_(targets),
      memory_(take_memory(program, sizes, scratch)),
      runner_(program.tile, tile_functions(table, program.tile.f64), memory_.tile_scratch) {
  const size_t bytes = program.tile.f64 ? 8 : 4;
  std::memset(memory_.max, 0, kQueryTile * bytes);
  for (size_t i = 0; i < program.target_sizes.size(); ++i) {
    const TargetCopy& copy = memory_.targets[i];
    if (copy.copies == 0) continue;
    std::memset(copy.copy, 0, static_cast<size_t>(copy.step * copy.copies) * bytes);
    std::memset(copy.touched, 0, copy.lines);
  }
  for (const GradientSite& site : program.sites) {
    waits_ = waits_ || !is_direct(site.pattern);
    shares_ = shares_ || site.pattern == GradientPattern::kShared;
  }
}

void GradientRunner::begin_head(const GradientHead& head) noexcept {
  head_ = head;
  query_ = -1;
  if (shares_) std::fill_n(memory_.passed, targets_.query_turn_count, false);
  const size_t bytes = program_.tile.f64 ? 8 : 4;
  for (size_t i = 0; i < program_.sites.size(); ++i) {
    clear_sums(program_.sites[i], memory_.sites[i], head, bytes);
  }
}

void GradientRunner::begin(const TileCoords& coords) noexcept {
  const int64_t query = coords.start[static_cast<int>(Coord::kQ)] - head_.q_begin;
  if (query != query_) pass_query_turn();
  const bool new_queries = query != query_;
  query_ = query;
  key_ = coords.start[static_cast<int>(Coord::kKv)] - head_.kv_begin;
  coords_ = coords;
  runner_.begin(coords);
  for (size_t i = 0; i < program_.sites.size(); ++i) {
    if (program_.tile.f64)
      load_others<double>(i, new_queries);
    else
      load_others<float>(i, new_queries);
    record_indices(i);
  }
}

// Which element of the gradient each sum of this tile is for.
void GradientRunner::record_indices(size_t i) noexcept {
  const GradientSite& site = program_.sites[i];
  const SiteSums& sums = memory_.sites[i];
  const auto record = [&](int64_t entry, int row, int lane) {
    sums.index[entry] = integer_at(site.index, runner_.row_of(site.index, row), lane);
    if (site.other_buffer >= 0)
      sums.other[entry] =
          integer_at(site.other_offset, runner_.row_of(site.other_offset, row), lane);
  };
  switch (site.pattern) {
    case GradientPattern::kUniform:
      return record(0, 0, 0);
    case GradientPattern::kLane:
    case GradientPattern::kDotLane:
      for (int lane = 0; lane < coords_.lanes; ++lane) record(query_ + lane, 0, lane);
      return;
    case GradientPattern::kRow:
    case GradientPattern::kDotRow:
      for (int row = 0; row < coords_.rows; ++row) record(key_ + row, row, 0);
      return;
    case GradientPattern::kDiagonal: {
      const int64_t first = query_ - key_ + sums.first_diagonal;
      for (int lane = 0; lane < coords_.lanes; ++lane) record(first + lane, 0, lane);
      for (int row = 1; row < coords_.rows; ++row) record(first - row, row, 0);
      return;
    }
    case GradientPattern::kOwned:
    case GradientPattern::kShared:
    case GradientPattern::kGather:
      return;
  }
}

// Products: rows of the other side, those of keys once per head, those of queries once per tile.
template <class T>
void GradientRunner::load_others(size_t i, bool new_queries) noexcept {
  const GradientSite& site = program_.sites[i];
  const SiteSums& sums = memory_.sites[i];
  const bool by_key = site.pattern == GradientPattern::kDotLane;
  if (!by_key && (site.pattern != GradientPattern::kDotRow || !new_queries)) return;
  const TileBuffer& other = program_.tile.buffers[site.other_buffer];
  const int existing = by_key ? coords_.rows : coords_.lanes;
  for (int e = 0; e < (by_key ? existing : kQueryTile); ++e) {
    const int64_t entry = by_key ? key_ + e : e;
    if (by_key && sums.other_rows[entry] != OtherRow::kMissing) continue;
    T* const to = static_cast<T*>(sums.others) + entry * sums.columns;
    std::fill_n(to, sums.columns, T{0});
    sums.other_rows[entry] = OtherRow::kFinite;
    if (e >= existing) continue;
    const int row = by_key ? e : 0, lane = by_key ? 0 : e;
    const int64_t offset =
        integer_at(site.other_offset, runner_.row_of(site.other_offset, row), lane);
    sums.other_rows[entry] = load_other_row(other, offset, site.width, to);
  }
}

template <class T>
void GradientRunner::store_slopes(const ScoreTile& slopes, int row_begin,
                                  int row_end) const noexcept {
  const TileOperand& value = program_.slope_value;
  const int panels = (coords_.lanes + kPanel - 1) / kPanel;
  for (int panel = 0; panel < panels; ++panel) {
    for (int row = row_begin; row < row_end; ++row) {
      T* const to = reinterpret_cast<T*>(static_cast<char*>(slopes.data) + row * slopes.row_step +
                                         panel * slopes.panel_step);
      const T* const from = reinterpret_cast<const T*>(runner_.row_of(value, row));
      if (value.broadcast)
        std::fill_n(to, kPanel, *from);
      else
        std::copy_n(from + panel * kPanel, kPanel, to);
    }
  }
}

void GradientRunner::apply(const ScoreTile& scores, const ScoreTile& slopes, int row_begin,
                           int row_end, const uint64_t* visible) noexcept {
  runner_.apply(scores, row_begin, row_end, memory_.max, visible);
  if (program_.slope != SlopeKind::kElement) return;
  if (program_.tile.f64)
    store_slopes<double>(slopes, row_begin, row_end);
  else
    store_slopes<float>(slopes, row_begin, row_end);
}

double GradientRunner::uniform_slope() const noexcept {
  const char* const at = runner_.row_of(program_.slope_value, 0);
  if (program_.tile.f64) return *reinterpret_cast<const double*>(at);
  return static_cast<double>(*reinterpret_cast<const float*>(at));
}

template <class T>
void GradientRunner::collect_site(size_t i, const GradientBlock& block) noexcept {
  const GradientSite& site = program_.sites[i];
  const SiteSums& sums = memory_.sites[i];
  const GradientTile tile{runner_, site, coords_.lanes, query_, key_};
  T* const numbers = static_cast<T*>(sums.sums);
  switch (site.pattern) {
    case GradientPattern::kUniform:
      return add_lanes(tile, block, backward_functions<T>(table_), numbers);
    case GradientPattern::kLane:
      return add_lanes(tile, block, backward_functions<T>(table_), numbers + query_);
    case GradientPattern::kRow:
      return add_rows(tile, block, numbers);
    case GradientPattern::kDiagonal:
      return add_diagonals<T>(tile, block, sums);
    case GradientPattern::kShared:
      take_query_turn();
      [[fallthrough]];
    case GradientPattern::kOwned:
      return add_direct(tile, block, static_cast<T*>(targets_.gradients[site.target]));
    case GradientPattern::kGather: {
      const TileBuffer* const other =
          site.other_buffer < 0 ? nullptr : &program_.tile.buffers[site.other_buffer];
      return add_gathered<T>(tile, block, memory_.targets[site.target], other);
    }
    case GradientPattern::kDotLane:
    case GradientPattern::kDotRow:
      return add_products<T>(tile, block, sums, memory_, forward_functions<T>(table_));
  }
}

void GradientRunner::collect(const ScoreTile& d_modified, int row_begin, int row_end,
                             int panel_begin, int panel_end) noexcept {
  const GradientBlock block{d_modified, row_begin, row_end, panel_begin, panel_end};
  for (size_t i = 0; i < program_.sites.size(); ++i) {
    if (program_.tile.f64)
      collect_site<double>(i, block);
    else
      collect_site<float>(i, block);
  }
}

void GradientRunner::take_query_turn() noexcept {
  if (holds_turn_) return;
  targets_.query_turns[query_ / kQueryTile].wait_for(head_.ordinal);
  holds_turn_ = true;
}

void GradientRunner::pass_query_turn() noexcept {
  if (!holds_turn_) return;
  targets_.query_turns[query_ / kQueryTile].pass(head_.ordinal);
  memory_.passed[query_ / kQueryTile] = true;
  holds_turn_ = false;
}

template <class T>
void GradientRunner::add_heads_sums() noexcept {
  for (size_t i = 0; i < program_.sites.size(); ++i) {
    const GradientSite& site = program_.sites[i];
    const TileBuffer* const other =
        site.other_buffer < 0 ? nullptr : &program_.tile.buffers[site.other_buffer];
    merge_sums<T>({site, memory_.sites[i], other, static_cast<T*>(targets_.gradients[site.target])},
                  head_);
  }
  for (size_t target = 0; target < program_.target_sizes.size(); ++target)
    merge_copy(memory_.targets[target], program_.target_sizes[target],
               static_cast<T*>(targets_.gradients[target]));
}

void GradientRunner::end_head() noexcept {
  pass_query_turn();
  if (shares_) {
    for (int i = targets_.query_turn_count - 1; i >= 0; --i) {
      if (memory_.passed[i]) continue;
      targets_.query_turns[i].wait_for(head_.ordinal);
      targets_.query_turns[i].pass(head_.ordinal);
    }
  }
  if (!waits_) return;
  targets_.head_turn->wait_for(head_.ordinal);
  if (program_.tile.f64)
    add_heads_sums<double>();
  else
    add_heads_sums<float>();
  targets_.head_turn->pass(head_.ordinal);
}

}  // namespace quire::kernels
