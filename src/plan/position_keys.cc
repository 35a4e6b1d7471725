// Computes runs of keys from positions. Plan layer.
#include "plan/position_keys.h"

#include <algorithm>

#include "plan/choose_kernel.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

using kernels::kQueryTile;

namespace {

struct Seen {
  std::int64_t begin, end;
};

// Keys a causal query sees.
Seen seen_from(const PositionRule& rule, std::int64_t q_idx, std::int64_t first,
               std::int64_t length) {
  const std::int64_t begin = rule.window > 0 ? q_idx - rule.window + 1 : 0;
  return {std::max(begin, first), std::min(q_idx + 1, length)};
}

constexpr std::int64_t kRunsOfTile = 3;

}  // namespace

PositionKeys::PositionKeys(const PositionRule& rule, const Batch& batch) {
  const auto is_prefill = [&](std::int64_t b) {
    return kernel_of_sequence(batch.chosen, b, batch.group, batch.queries.length(b),
                              batch.keys.length(b)) == Kernel::kPrefill;
  };
  std::int64_t rows = 0, tiles = 0;
  first_.reserve(batch.sequences);
  for (std::int64_t b = 0; b < batch.sequences; ++b) {
    const std::int64_t queries = batch.queries.length(b);
    std::int64_t& count = is_prefill(b) ? tiles : rows;
    first_.push_back(count);
    count += is_prefill(b) ? ceil_div(queries, kQueryTile) : queries;
  }
  rows_.reserve(rows);
  tiles_.reserve(tiles);
  runs_.reserve(rows + kRunsOfTile * tiles);
  for (std::int64_t b = 0; b < batch.sequences; ++b) {
    const std::size_t at = b;
    const Sequence of{.q_begin = batch.q_begin[batch.q_begin.size() == 1 ? 0 : at],
                      .length = batch.keys.length(b),
                      .first = rule.first.empty() ? 0 : rule.first[at]};
    const std::int64_t queries = batch.queries.length(b);
    if (is_prefill(b)) {
      for (std::int64_t row = 0; row < queries; row += kQueryTile) {
        add_tile(rule, of, of.q_begin + row,
                 static_cast<int>(std::min<std::int64_t>(kQueryTile, queries - row)));
      }
    } else {
      for (std::int64_t row = 0; row < queries; ++row) add_row(rule, of, of.q_begin + row);
    }
  }
}

void PositionKeys::add_run(std::int64_t begin, std::int64_t end, bool full) {
  if (begin >= end) return;
  runs_.push_back({begin, end, full});
  asks_ |= !full;
}

void PositionKeys::add_row(const PositionRule& rule, const Sequence& of, std::int64_t q_idx) {
  const kernels::KeyRun* const at = runs_.data() + runs_.size();
  if (!rule.is_causal) {
    add_run(of.first, of.length, false);
  } else {
    const Seen seen = seen_from(rule, q_idx, of.first, of.length);
    if (seen.begin == 0 && seen.end == of.length) return rows_.push_back({nullptr, -1});
    add_run(seen.begin, seen.end, true);
  }
  rows_.push_back({at, runs_.data() + runs_.size() - at});
}

void PositionKeys::add_tile(const PositionRule& rule, const Sequence& of, std::int64_t q_idx,
                            int queries) {
  const kernels::KeyRun* const at = runs_.data() + runs_.size();
  if (!rule.is_causal) {
    add_run(of.first, of.length, false);
  } else {
    const Seen top = seen_from(rule, q_idx, of.first, of.length);
    const Seen bottom = seen_from(rule, q_idx + queries - 1, of.first, of.length);
    // Keys the last query no longer sees, keys all see, keys the first does not see yet.
    add_run(top.begin, bottom.begin, false);
    add_run(bottom.begin, top.end, true);
    add_run(std::max(top.end, bottom.begin), bottom.end, false);
  }
  tiles_.push_back(
      {.lane_begin = 0, .lane_end = queries, .visible = {at, runs_.data() + runs_.size() - at}});
}

kernels::KeyRuns PositionKeys::row(std::int64_t sequence, std::int64_t, std::int64_t row) const {
  return rows_[first_[sequence] + row];
}

std::span<const kernels::LaneRuns> PositionKeys::tile(std::int64_t sequence, std::int64_t,
                                                      std::int64_t tile) const {
  return {&tiles_[first_[sequence] + tile], 1};
}

std::int64_t PositionKeys::keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const {
  const kernels::KeyRuns runs = this->tile(sequence, h, tile)[0].visible;
  std::int64_t keys = 0;
  for (std::int64_t i = 0; i < runs.count; ++i) keys += runs.runs[i].end - runs.runs[i].begin;
  return keys;
}

}  // namespace quire::plan
