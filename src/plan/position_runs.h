// Runs of keys that positions alone show to the queries of a step: causal, windows with and without
// sinks, trees. Proves nothing. Plan layer.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/forward_problem.h"
#include "plan/step_sequence.h"

namespace quire::plan {

using Runs = std::vector<kernels::KeyRun>;

/// Adds keys begin <= key < end, if there are any; joins them with the last run where it can.
void add_run(Runs& runs, std::int64_t begin, std::int64_t end, bool full);
/// Keys in both lists; a run is full only where both are, otherwise the mask program is asked.
Runs intersection(const Runs& a, const Runs& b);

/// What positions show to single queries.
class PositionRows {
 public:
  explicit PositionRows(const StepSequence& of) : of_(of), depths_(depths_of(of)) {}

  void add(Runs& runs, std::int64_t row);

 private:
  const StepSequence& of_;
  std::vector<std::int64_t> depths_, path_;
};

/// Adds the runs that the queries of a tile see by position; where only some queries see a key, the
/// program is asked.
void add_tile(Runs& runs, const StepSequence& of, std::int64_t q_idx, std::int64_t queries);

}  // namespace quire::plan
