// Proves bands of rows as tasks and concatenates their runs in order. Mask layer.
#include "mask/prove_planes.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/memory.h"
#include "runtime/run_parallel.h"

namespace quire::mask {
namespace {

void add_to_report(BlockMaskReport* report, const BlockGrid& grid, std::int64_t planes,
                   std::span<const BlockProver::Worker> workers) {
  if (report == nullptr) return;
  *report = {.most_steps = report->most_steps};
  report->planes = planes;
  report->area = saturating_product(saturating_product(grid.q_len, grid.kv_len), planes);
  for (const BlockProver::Worker& worker : workers) {
    report->rectangles += worker.rectangles;
    report->evaluated += worker.evaluated;
    report->steps.insert(report->steps.end(), worker.steps.begin(), worker.steps.end());
  }
}

}  // namespace

std::int64_t band_rows(std::int64_t rows, std::int64_t planes, std::int64_t threads,
                       std::int64_t leaf_rows) {
  const std::int64_t bands =
      std::max<std::int64_t>(1, 8 * threads / std::max<std::int64_t>(planes, 1));
  const std::int64_t wanted = std::min<std::int64_t>(256, ceil_div(rows, bands));
  return std::max<std::int64_t>(1, ceil_div(wanted, leaf_rows)) * leaf_rows;
}

BlockRows prove_planes(const BlockProver& prover, const BlockGrid& grid, PlaneCounts planes,
                       const ProveOptions& options) {
  const std::int64_t rows = grid.q_blocks(), count = planes.batches * planes.heads;
  RunBudget budget(options.where, options.max_bytes);
  constexpr std::int64_t kRowBytes = sizeof(RunList) + 16;
  budget.spend(saturating_product(saturating_product(rows, count), kRowBytes));
  const std::shared_ptr<Executor> executor = executor_of(options.executor);
  std::vector<BlockProver::Worker> workers;
  workers.reserve(executor->concurrency());
  for (std::size_t i = 0; i < executor->concurrency(); ++i) workers.emplace_back(prover, &budget);
  if (options.report != nullptr)
    for (BlockProver::Worker& worker : workers) worker.most_steps = options.report->most_steps;

  const std::int64_t band =
      band_rows(rows, count, static_cast<std::int64_t>(workers.size()), prover.leaf_rows());
  const std::int64_t bands = ceil_div(rows, band);
  std::vector<RunList> runs(rows * count);
  run_parallel(*executor, bands * count, [&](std::size_t task, std::size_t worker) {
    const std::int64_t plane = static_cast<std::int64_t>(task) / bands;
    const std::int64_t begin = static_cast<std::int64_t>(task) % bands * band;
    const std::int64_t end = std::min(rows, begin + band);
    const std::span<RunList> out = std::span(runs).subspan(plane * rows + begin, end - begin);
    prover.prove(plane / planes.heads, plane % planes.heads, {begin, end, 0, grid.kv_blocks()}, out,
                 workers[worker]);
  });
  prover.throw_first_fault(workers);
  add_to_report(options.report, grid, count, workers);

  BlockRowsBuilder builder(planes.batches, planes.heads, rows);
  for (RunList& row : runs) {
    builder.add_row(row);
    row = {};
  }
  return builder.finish();
}

}  // namespace quire::mask
