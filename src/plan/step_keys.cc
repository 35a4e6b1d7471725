// Computes the runs of every row or tile of a step, sequence by sequence, in parallel. Plan layer.
#include "plan/step_keys.h"

#include <algorithm>
#include <deque>
#include <map>

#include "plan/choose_kernel.h"
#include "plan/position_runs.h"
#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

using kernels::KeyRun;
using kernels::kQueryTile;
using mask::RunList;

namespace {

// A row with more runs is left to the program: evaluating it costs less than walking them.
constexpr std::int64_t kMostRuns = 64, kClose = 128;

// Runs that are close to each other become one run that the program decides.
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

bool is_prefill(const StepSequence& of, std::int64_t group) {
  return !of.is_chosen && choose_kernel(group, of.queries, of.length) == Kernel::kPrefill;
}

// Whether a sequence has runs per query: if it decodes, or if the step's program cannot decide for
// it.
bool by_row(const StepSequence& of, std::int64_t group) {
  return !of.is_common || !is_prefill(of, group);
}

bool reads_hole(const StepSequence& of, const KeyRun& run) {
  return run.begin < of.hole_end && run.end > of.hole_begin;
}

// The results for one sequence: runs of its rows, of its tiles, or of the lanes of its tiles.
struct Found {
  std::vector<Runs> lists;  // [planes][rows, tiles or rows]
  std::int64_t planes = 1;
  bool misses = false, later = false;
};

// The proofs of a step: one for what the step's program decides, one for each other rule. Proofs
// are taken from earlier steps where possible.
class StepProofs {
 public:
  StepProofs(std::span<const StepSequence> sequences, const StepRule& rule, Executor& executor)
      : proofs_(sequences.size()) {
    std::map<const MaskMod*, std::vector<std::size_t>> users;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const StepSequence& of = sequences[i];
      if (of.rule != nullptr) users[of.is_common ? nullptr : of.rule].push_back(i);
    }
    for (const auto& [own, which] : users) {
      std::vector<StepSequence> some;
      std::vector<const StepSequence*> rows;
      bool has_tiles = false;
      for (const std::size_t i : which) {
        some.push_back(sequences[i]);
        by_row(sequences[i], rule.group) ? rows.push_back(&sequences[i]) : void(has_tiles = true);
      }
      RuleProof* const proof =
          proof_of(own == nullptr ? *rule.program : *own, some, rule, executor.concurrency());
      if (!rows.empty()) proof->prepare(rows, executor);
      if (has_tiles) proof->prepare_tiles();
      for (const std::size_t i : which) proofs_[i] = proof;
    }
  }

  // Null: positions alone decide.
  RuleProof* of(std::size_t i) const { return proofs_[i]; }
  void throw_first_fault() const {
    for (const RuleProof& one : made_) one.throw_first_fault();
  }

 private:
  RuleProof* proof_of(const MaskMod& of, std::span<const StepSequence> sequences,
                      const StepRule& rule, std::size_t workers) {
    const ProofExtents extents = ProofExtents::of(sequences);
    if (rule.memory != nullptr) {
      RuleProof* const kept = rule.memory->find(of, extents, rule.q_heads, workers);
      if (kept != nullptr) return kept;
    }
    std::int64_t area = 0, elements = 0;
    for (const StepSequence& one : sequences) area += one.queries * one.length;
    for (const Buffer& buffer : of.formula().buffers()) elements += element_count(buffer.shape());
    return &made_.emplace_back(of, extents,
                               RuleProof::Options{.heads = rule.q_heads,
                                                  .workers = workers,
                                                  .how = mask::proof_for_append(area, elements)});
  }

  std::deque<RuleProof> made_;
  std::vector<RuleProof*> proofs_;
};

}  // namespace

struct StepKeys::Builder {
  std::span<const StepSequence> sequences;
  const StepRule& rule;
  StepKeys& keys;

  // Sequences without a rule: one list after the other, nothing to prove.
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

  // Evaluates the rule key by key, for rows that decode or that the step's program cannot decide.
  void add_rule_rows(const StepSequence& of, RuleProof& proof, std::size_t worker,
                     Found& found) const {
    found.planes = proof.by_head() ? rule.q_heads : 1;
    std::vector<RunList> blocks;
    PositionRows each(of);
    Runs shown;
    for (std::int64_t h = 0; h < found.planes; ++h) {
      proof.prove_rows(of, h, worker, blocks);
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

  // Proves the rule in blocks, for tiles of queries.
  void add_rule_tiles(const StepSequence& of, RuleProof& proof, std::size_t worker,
                      Found& found) const {
    found.planes = proof.by_head() ? rule.q_heads : 1;
    std::vector<RunList> blocks;
    for (std::int64_t h = 0; h < found.planes; ++h) {
      found.later |= proof.shows_later(of, h, worker);
      proof.prove_tiles(of, h, worker, blocks);
      for (const RunList& tile : blocks) {
        Runs& runs = found.lists.emplace_back();
        for (const BlockRun& run : tile)
          add_run(runs, run.begin * kTileBlocks.kv, std::min(run.end() * kTileBlocks.kv, of.length),
                  mask::is_full(run.kind));
      }
    }
  }

  // Removes keys that do not exist, and finds out whether a query sees one of them.
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

  // Moves the lists of a sequence to their places in the keys.
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

  // Has no address until all runs are stored.
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
  StepProofs proofs(sequences, rule, *executor);
  std::vector<Found> found(sequences.size());
  const auto prove = [&](std::size_t i, std::size_t worker) {
    const StepSequence& of = sequences[i];
    RuleProof* const proof = proofs.of(i);
    if (proof == nullptr) {
      builder.add_positions(of, found[i]);
    } else if (by_row(of, rule.group)) {
      builder.add_rule_rows(of, *proof, worker, found[i]);
    } else {
      builder.add_rule_tiles(of, *proof, worker, found[i]);
    }
    builder.cut_hole(of, proof, worker, found[i]);
  };
  constexpr std::size_t kFew = 4;  // a few microseconds each
  if (sequences.size() <= kFew) {
    for (std::size_t i = 0; i < sequences.size(); ++i) prove(i, 0);
  } else {
    run_parallel(*executor, sequences.size(), prove);
  }
  proofs.throw_first_fault();
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
