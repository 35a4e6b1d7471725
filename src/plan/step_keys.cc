// Positions, trees and rules to runs. Plan layer.
#include "plan/step_keys.h"

#include <algorithm>

#include "mask/block_prover.h"
#include "plan/choose_kernel.h"
#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

using kernels::KeyRun;
using kernels::kQueryTile;
using mask::BlockGrid;
using mask::BlockProver;
using mask::RunList;

namespace {

using Runs = std::vector<KeyRun>;

// A row of more runs is asked of the program: walking them would cost more than asking.
constexpr std::int64_t kMostRuns = 64, kClose = 128;
constexpr BlockSize kTileBlocks{kQueryTile, 128};

void add_run(Runs& runs, std::int64_t begin, std::int64_t end, bool full) {
  if (begin >= end) return;
  if (!runs.empty() && runs.back().end == begin && runs.back().full == full)
    runs.back().end = end;
  else
    runs.push_back({begin, end, full});
}

// Keys before `limit` that a query at this depth of its path sees.
void add_window(Runs& runs, const PositionWindow& of, std::int64_t depth, std::int64_t limit) {
  const std::int64_t end = std::min(depth + 1, limit);
  const std::int64_t begin =
      of.window > 0 ? std::max<std::int64_t>(depth - of.window + 1, 0) : std::int64_t{0};
  const std::int64_t sinks = std::min(of.sinks, end);
  add_run(runs, 0, std::min(sinks, begin), true);
  add_run(runs, begin, end, true);
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

// Runs that are close to each other become one that is asked.
void join_close(Runs& runs) {
  std::size_t last = 0;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].begin - runs[last].end < kClose) {
      runs[last].end = runs[i].end;
      runs[last].full = false;
    } else {
      runs[++last] = runs[i];
    }
  }
  runs.resize(last + 1);
}

// The depth of every token of a tree: the length of its path from position 0 on, itself not
// counted.
std::vector<std::int64_t> depths_of(const StepSequence& of) {
  const std::int64_t root = of.length - std::ssize(of.parents);
  std::vector<std::int64_t> depths(of.parents.size());
  for (std::size_t i = 0; i < depths.size(); ++i)
    depths[i] = of.parents[i] < 0 ? root : depths[static_cast<std::size_t>(of.parents[i])] + 1;
  return depths;
}

// What positions show to single queries.
class PositionRows {
 public:
  explicit PositionRows(const StepSequence& of) : of_(of), depths_(depths_of(of)) {}

  void add(Runs& runs, std::int64_t row) {
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

 private:
  const StepSequence& of_;
  std::vector<std::int64_t> depths_, path_;
};

// What all queries of a tile, some of them, or none see by position; some: the program is asked.
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
  // What the last query no longer sees, what all see, what the first does not see yet.
  add_run(runs, top, std::min(bottom, bottom_end), false);
  add_run(runs, bottom, top_end, true);
  add_run(runs, std::max(top_end, bottom), bottom_end, false);
}

bool is_prefill(const StepSequence& of, std::int64_t group) {
  return !of.is_chosen && choose_kernel(group, of.queries, of.length) == Kernel::kPrefill;
}

bool reads_hole(const StepSequence& of, const KeyRun& run) {
  return run.begin < of.hole_end && run.end > of.hole_begin;
}

// Proofs of one rule for the sequences that have it.
class RuleProof {
 public:
  RuleProof(const MaskMod& rule, std::span<const StepSequence> sequences, std::int64_t heads,
            BlockSize size, std::size_t workers)
      : prover_(rule, batch(sequences), heads, around(sequences, size), proof(rule, sequences)) {
    workers_.reserve(workers);
    for (std::size_t i = 0; i < workers; ++i) workers_.emplace_back(prover_);
  }

  bool by_head() const { return prover_.depends_on_h(); }
  void throw_first_fault() const { prover_.throw_first_fault(workers_); }

  // Of each row of blocks of a plane, the runs of keys.
  void prove(const StepSequence& of, std::int64_t h, BlockSize size, std::size_t worker,
             std::vector<RunList>& rows) {
    const BlockGrid grid{of.q_begin, of.queries, of.length, size};
    rows.resize(static_cast<std::size_t>(grid.q_blocks()));
    for (RunList& row : rows) row.clear();
    prover_.prove(of.b, h, grid, {0, grid.q_blocks(), 0, grid.kv_blocks()}, rows, workers_[worker]);
  }
  // Whether a query sees a key of begin <= key < end.
  bool sees(const StepSequence& of, std::int64_t h, std::int64_t begin, std::int64_t end,
            std::size_t worker) {
    const BlockGrid grid{of.q_begin, of.queries, of.length, {1, 1}};
    std::vector<RunList> rows(static_cast<std::size_t>(of.queries));
    prover_.prove(of.b, h, grid, {0, of.queries, begin, end}, rows, workers_[worker]);
    return std::ranges::any_of(rows, [](const RunList& row) { return !row.empty(); });
  }

 private:
  static std::int64_t batch(std::span<const StepSequence> sequences) {
    std::int64_t most = 0;
    for (const StepSequence& of : sequences) most = std::max(most, of.b);
    return most + 1;
  }
  static BlockGrid around(std::span<const StepSequence> sequences, BlockSize size) {
    BlockGrid grid{sequences.front().q_begin, 0, 0, size};
    std::int64_t end = 0;
    for (const StepSequence& of : sequences) {
      grid.q_begin = std::min(grid.q_begin, of.q_begin);
      end = std::max(end, of.q_begin + of.queries);
      grid.kv_len = std::max(grid.kv_len, of.length);
    }
    grid.q_len = end - grid.q_begin;
    return grid;
  }
  static mask::Proof proof(const MaskMod& rule, std::span<const StepSequence> sequences) {
    std::int64_t area = 0, elements = 0;
    for (const StepSequence& of : sequences) area += of.queries * of.length;
    for (const Buffer& buffer : rule.formula().buffers()) elements += element_count(buffer.shape());
    return mask::proof_for_append(area, elements);
  }

  BlockProver prover_;
  std::vector<BlockProver::Worker> workers_;
};

// What was found out about one sequence: runs of its rows, of its tiles, or of the lanes of these.
struct Found {
  std::vector<Runs> lists;  // [planes][rows, tiles or rows]
  std::int64_t planes = 1;
  bool misses = false, later = false;
};

}  // namespace

struct StepKeys::Builder {
  std::span<const StepSequence> sequences;
  const StepRule& rule;
  StepKeys& keys;

  // Rows of single queries: of those that decode, and of those the program cannot answer for.
  static bool by_row(const StepSequence& of, std::int64_t group) {
    return !of.is_common || !is_prefill(of, group);
  }

  // Sequences without a rule, one list after the other, without a proof.
  void add_positions(const StepSequence& of, Found& found) const {
    const bool rows = by_row(of, rule.group);
    found.lists.resize(
        static_cast<std::size_t>(rows ? of.queries : ceil_div(of.queries, kQueryTile)));
    PositionRows each(of);
    for (std::size_t i = 0; i < found.lists.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) * (rows ? 1 : kQueryTile);
      if (rows) {
        each.add(found.lists[i], row);
      } else {
        add_tile(found.lists[i], of, of.q_begin + row,
                 std::min<std::int64_t>(kQueryTile, of.queries - row));
      }
    }
  }

  // The rule key by key: of rows that decode, or that nobody else can answer for.
  void add_rule_rows(const StepSequence& of, RuleProof& proof, std::size_t worker,
                     Found& found) const {
    found.planes = proof.by_head() ? rule.q_heads : 1;
    std::vector<RunList> blocks;
    PositionRows each(of);
    Runs shown;
    for (std::int64_t h = 0; h < found.planes; ++h) {
      proof.prove(of, h, {1, 1}, worker, blocks);
      for (std::int64_t row = 0; row < of.queries; ++row) {
        Runs& runs = found.lists.emplace_back();
        for (const BlockRun& run : blocks[static_cast<std::size_t>(row)])
          add_run(runs, run.begin, run.end(), true);
        if (of.positions.has_value()) {
          shown.clear();
          each.add(shown, row);
          runs = intersection(runs, shown);
        }
        found.later |= !runs.empty() && runs.back().end > of.q_begin + row + 1;
        if (of.is_common && std::ssize(runs) > kMostRuns) join_close(runs);
      }
    }
  }

  // In blocks, of tiles of queries. `later` proves what is visible behind the queries.
  void add_rule_tiles(const StepSequence& of, RuleProof& proof, RuleProof& later,
                      std::size_t worker, Found& found) const {
    found.planes = proof.by_head() ? rule.q_heads : 1;
    std::vector<RunList> blocks;
    for (std::int64_t h = 0; h < found.planes; ++h) {
      later.prove(of, h, kTileBlocks, worker, blocks);
      found.later |= std::ranges::any_of(blocks, [](const RunList& row) { return !row.empty(); });
    }
    for (std::int64_t h = 0; h < found.planes; ++h) {
      proof.prove(of, h, kTileBlocks, worker, blocks);
      for (std::size_t tile = 0; tile < blocks.size(); ++tile) {
        Runs& runs = found.lists.emplace_back();
        for (const BlockRun& run : blocks[tile])
          add_run(runs, run.begin * kTileBlocks.kv, std::min(run.end() * kTileBlocks.kv, of.length),
                  mask::is_full(run.kind));
      }
    }
  }

  // Keys that are not there are taken out; whether one of them is seen is found out.
  void cut_hole(const StepSequence& of, RuleProof* proof, std::size_t worker, Found& found) const {
    if (of.hole_begin == of.hole_end) return;
    const std::int64_t per_plane = std::ssize(found.lists) / found.planes;
    for (std::size_t i = 0; i < found.lists.size(); ++i) {
      Runs& runs = found.lists[i];
      if (!std::ranges::any_of(runs, [&](const KeyRun& run) { return reads_hole(of, run); }))
        continue;
      for (const KeyRun& run : runs) {
        if (!reads_hole(of, run)) continue;
        const std::int64_t h = static_cast<std::int64_t>(i) / std::max<std::int64_t>(per_plane, 1);
        if (run.full || proof == nullptr) {
          found.misses = true;
        } else {
          found.misses |= proof->sees(of, h, std::max(run.begin, of.hole_begin),
                                      std::min(run.end, of.hole_end), worker);
        }
      }
      const Runs there{{0, of.hole_begin, true}, {of.hole_end, of.length, true}};
      runs = intersection(runs, there);
    }
  }

  // The lists of a sequence to their places in the keys.
  void store(std::size_t i, const Found& found) {
    const StepSequence& of = sequences[i];
    const bool tiles = is_prefill(of, rule.group);
    const bool rows = by_row(of, rule.group);
    const std::int64_t per_plane =
        std::ssize(found.lists) / std::max<std::int64_t>(found.planes, 1);
    Place& place = keys.places_[i];
    place.by_head = found.planes > 1;
    place.per_plane = tiles && rows ? ceil_div(of.queries, kQueryTile) : per_plane;
    place.first = static_cast<std::int64_t>(tiles ? keys.first_lanes_.size() : keys.rows_.size());
    std::size_t list = 0;
    for (std::int64_t plane = 0; plane < found.planes; ++plane) {
      for (std::int64_t at = 0; at < per_plane; ++at, ++list) {
        const Runs& runs = found.lists[list];
        if (!tiles) {
          keys.rows_.push_back(shows_all(of, runs) ? kernels::KeyRuns{nullptr, -1} : stored(runs));
          continue;
        }
        const std::int64_t lane = rows ? at % kQueryTile : 0;
        if (lane == 0) keys.first_lanes_.push_back(std::ssize(keys.lanes_));
        const std::int64_t lanes =
            rows ? 1 : std::min<std::int64_t>(kQueryTile, of.queries - at * kQueryTile);
        keys.lanes_.push_back({.lane_begin = static_cast<int>(lane),
                               .lane_end = static_cast<int>(lane + lanes),
                               .visible = stored(runs)});
      }
    }
    if (found.misses && keys.first_missing_ < 0) keys.first_missing_ = static_cast<std::int64_t>(i);
    keys.sees_later_[i] = found.later;
  }

  static bool shows_all(const StepSequence& of, const Runs& runs) {
    return runs.size() == 1 && runs[0].full && runs[0].begin == 0 && runs[0].end == of.length;
  }

  // Without an address until all runs are there.
  kernels::KeyRuns stored(const Runs& runs) {
    for (const KeyRun& run : runs) keys.asks_ |= !run.full;
    keys.runs_.insert(keys.runs_.end(), runs.begin(), runs.end());
    return {nullptr, std::ssize(runs)};
  }

  void set_addresses() {
    const KeyRun* next = keys.runs_.data();
    const auto set = [&](kernels::KeyRuns& runs) {
      if (runs.count < 0) return;
      runs.runs = next;
      next += runs.count;
    };
    // In the order in which sequences were stored.
    std::size_t row = 0, lane = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const bool tiles = is_prefill(sequences[i], rule.group);
      const std::size_t end_row = tiles ? row : next_first(i, keys.rows_.size(), /*tiles=*/false);
      for (; row < end_row; ++row) set(keys.rows_[row]);
      if (!tiles) continue;
      const std::size_t end_tile = next_first(i, keys.first_lanes_.size(), /*tiles=*/true);
      const std::size_t end_lane = end_tile < keys.first_lanes_.size()
                                       ? static_cast<std::size_t>(keys.first_lanes_[end_tile])
                                       : keys.lanes_.size();
      for (; lane < end_lane; ++lane) set(keys.lanes_[lane].visible);
    }
    keys.first_lanes_.push_back(std::ssize(keys.lanes_));
  }

  // Where the rows, or the tiles, of the next sequence of that kind begin.
  std::size_t next_first(std::size_t i, std::size_t end, bool tiles) const {
    for (std::size_t j = i + 1; j < sequences.size(); ++j)
      if (is_prefill(sequences[j], rule.group) == tiles)
        return static_cast<std::size_t>(keys.places_[j].first);
    return end;
  }
};

StepKeys::StepKeys(std::span<const StepSequence> sequences, const StepRule& rule) {
  Builder builder{sequences, rule, *this};
  places_.resize(sequences.size());
  sees_later_.resize(sequences.size());
  const auto has_rule = [](const StepSequence& of) { return of.rule != nullptr; };
  if (std::ranges::none_of(sequences, has_rule)) {
    Found found;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      for (Runs& list : found.lists) list.clear();
      found.misses = false;
      builder.add_positions(sequences[i], found);
      builder.cut_hole(sequences[i], nullptr, 0, found);
      builder.store(i, found);
    }
    builder.set_addresses();
    return;
  }
  const std::shared_ptr<Executor> executor = executor_of(rule.executor);
  const std::size_t workers = executor->concurrency();
  // One proof for what the program answers for, key by key or in blocks; one for each other rule.
  std::optional<RuleProof> rows, tiles, later;
  std::vector<std::optional<RuleProof>> own(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& of = sequences[i];
    if (of.rule == nullptr) continue;
    if (!of.is_common) {
      own[i].emplace(*of.rule, sequences.subspan(i, 1), rule.q_heads, BlockSize{1, 1}, workers);
    } else if (Builder::by_row(of, rule.group)) {
      if (!rows) rows.emplace(*rule.program, sequences, rule.q_heads, BlockSize{1, 1}, workers);
    } else {
      if (!tiles) {
        const MaskMod behind = [](auto, auto, auto q, auto kv) { return kv > q; };
        tiles.emplace(*rule.program, sequences, rule.q_heads, kTileBlocks, workers);
        later.emplace(*rule.program & behind, sequences, rule.q_heads, kTileBlocks, workers);
      }
      if (of.hole_begin < of.hole_end && !rows)
        rows.emplace(*rule.program, sequences, rule.q_heads, BlockSize{1, 1}, workers);
    }
  }
  std::vector<Found> found(sequences.size());
  const auto prove = [&](std::size_t i, std::size_t worker) {
    const StepSequence& of = sequences[i];
    RuleProof* exact = own[i] ? &*own[i] : rows ? &*rows : nullptr;
    if (of.rule == nullptr) {
      exact = nullptr;
      builder.add_positions(of, found[i]);
    } else if (Builder::by_row(of, rule.group)) {
      builder.add_rule_rows(of, *exact, worker, found[i]);
    } else {
      builder.add_rule_tiles(of, *tiles, *later, worker, found[i]);
    }
    builder.cut_hole(of, exact, worker, found[i]);
  };
  constexpr std::size_t kFew = 4;  // a few microseconds each
  if (sequences.size() <= kFew) {
    for (std::size_t i = 0; i < sequences.size(); ++i) prove(i, 0);
  } else {
    run_parallel(*executor, sequences.size(), prove);
  }
  for (const std::optional<RuleProof>* one : {&rows, &tiles})
    if (*one) (*one)->throw_first_fault();
  for (const std::optional<RuleProof>& one : own)
    if (one) one->throw_first_fault();
  for (std::size_t i = 0; i < sequences.size(); ++i) builder.store(i, found[i]);
  builder.set_addresses();
}

kernels::KeyRuns StepKeys::row(std::int64_t sequence, std::int64_t h, std::int64_t row) const {
  return rows_[at(sequence, h, row)];
}

std::span<const kernels::LaneRuns> StepKeys::tile(std::int64_t sequence, std::int64_t h,
                                                  std::int64_t tile) const {
  const std::size_t i = at(sequence, h, tile);
  const auto begin = static_cast<std::size_t>(first_lanes_[i]);
  return std::span(lanes_).subspan(begin, static_cast<std::size_t>(first_lanes_[i + 1]) - begin);
}

std::int64_t StepKeys::keys(std::int64_t sequence, std::int64_t h, std::int64_t tile) const {
  std::int64_t keys = 0;
  const kernels::KeyRuns runs = this->tile(sequence, h, tile).front().visible;
  for (std::int64_t i = 0; i < runs.count; ++i) keys += runs.runs[i].end - runs.runs[i].begin;
  return keys;
}

}  // namespace quire::plan
