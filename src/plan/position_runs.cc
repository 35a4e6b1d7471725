// Computes the runs of keys that causal rules, windows and trees show. Plan layer.
#include "plan/position_runs.h"

#include <algorithm>

namespace quire::plan {

void add_run(Runs& runs, std::int64_t begin, std::int64_t end, bool full) {
  if (begin >= end) return;
  if (!runs.empty() && runs.back().end == begin && runs.back().full == full)
    runs.back().end = end;
  else
    runs.push_back({begin, end, full});
}

Runs intersection(const Runs& a, const Runs& b) {
  Runs both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    add_run(both, std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end),
            a[i].full && b[j].full);
    (a[i].end < b[j].end ? i : j)++;
  }
  return both;
}

namespace {

// Adds the keys before `limit` that a query at this depth of its path sees.
void add_window(Runs& runs, const PositionWindow& of, std::int64_t depth, std::int64_t limit) {
  const std::int64_t end = std::min(depth + 1, limit);
  const std::int64_t begin =
      of.window > 0 ? std::max<std::int64_t>(depth - of.window + 1, 0) : std::int64_t{0};
  const std::int64_t sinks = std::min(of.sinks, end);
  add_run(runs, 0, std::min(sinks, begin), true);
  add_run(runs, begin, end, true);
}

}  // namespace

std::vector<std::int64_t> depths_of(const StepSequence& of) {
  const std::int64_t root = of.length - std::ssize(of.parents);
  std::vector<std::int64_t> depths(of.parents.size());
  for (std::size_t i = 0; i < depths.size(); ++i)
    depths[i] = of.parents[i] < 0 ? root : depths[static_cast<std::size_t>(of.parents[i])] + 1;
  return depths;
}

void PositionRows::add(Runs& runs, std::int64_t row) {
  const PositionWindow& window = *of_.positions;
  if (of_.parents.empty()) return add_window(runs, window, of_.q_begin + row, of_.length);
  const std::int64_t root = of_.length - std::ssize(of_.parents);
  const auto token = static_cast<std::size_t>(of_.q_begin + row - root);
  const std::int64_t depth = depths_[token];
  add_window(runs, window, depth, root);
  path_.clear();
  for (auto at = static_cast<std::int64_t>(token); at >= 0;
       at = of_.parents[static_cast<std::size_t>(at)]) {
    const std::int64_t above = depths_[static_cast<std::size_t>(at)];
    if (window.window > 0 && depth - above >= window.window && above >= window.sinks) continue;
    path_.push_back(root + at);
  }
  for (std::size_t i = path_.size(); i-- > 0;) add_run(runs, path_[i], path_[i] + 1, true);
}

void add_tile(Runs& runs, const StepSequence& of, std::int64_t q_idx, std::int64_t queries) {
  const PositionWindow& window = *of.positions;
  const auto seen_from = [&](std::int64_t q) {
    return window.window > 0 ? std::max<std::int64_t>(q - window.window + 1, 0) : std::int64_t{0};
  };
  const std::int64_t last = q_idx + queries - 1;
  const std::int64_t top_end = std::min(q_idx + 1, of.length);
  const std::int64_t bottom_end = std::min(last + 1, of.length);
  const std::int64_t top = seen_from(q_idx), bottom = seen_from(last);
  if (window.sinks > 0 && top <= window.sinks && bottom > 0)
    return add_run(runs, 0, bottom_end, false);
  add_run(runs, 0, std::min(window.sinks, top), true);
  // Keys that the last query no longer sees, keys that all see, keys that the first does not see
  // yet.
  add_run(runs, top, std::min(bottom, bottom_end), false);
  add_run(runs, bottom, top_end, true);
  add_run(runs, std::max(top_end, bottom), bottom_end, false);
}

}  // namespace quire::plan
