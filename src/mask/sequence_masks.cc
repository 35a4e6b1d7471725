// Proves one distinct mask per task. Mask layer.
#include "mask/sequence_masks.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "formula/build.h"
#include "formula/graph.h"
#include "mask/block_prover.h"
#include "mask/mask_grid.h"
#include "mask/size_limits.h"
#include "runtime/check_size.h"
#include "runtime/executor_of.h"
#include "runtime/memory.h"
#include "runtime/run_parallel.h"

namespace quire::mask {
namespace {

constexpr std::int64_t kRowBytes = sizeof(RunList) + 16;  // of a row of blocks without its runs

std::int64_t longest(std::span<const std::int64_t> lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// The first sequence of each distinct mask, and the mask of each sequence.
struct Different {
  std::vector<std::int64_t> first, which;
};

std::int64_t begin_of(const SequenceLengths& lengths, std::size_t i) {
  return lengths.q_begin.empty() ? 0 : lengths.q_begin[i];
}

// A grid that covers the positions of all sequences.
BlockGrid around(const SequenceLengths& lengths, BlockSize size) {
  BlockGrid grid{0, longest(lengths.q), longest(lengths.kv), size};
  if (lengths.q_begin.empty()) return grid;
  const auto [least, most] = std::minmax_element(lengths.q_begin.begin(), lengths.q_begin.end());
  grid.q_begin = *least;
  grid.q_len += *most - *least;
  return grid;
}

Different find_different(const SequenceLengths& lengths, bool all) {
  Different found;
  found.which.reserve(lengths.q.size());
  std::map<std::array<std::int64_t, 3>, std::int64_t> seen;
  for (std::size_t i = 0; i < lengths.q.size(); ++i) {
    const std::int64_t next = found.first.size();
    const std::array<std::int64_t, 3> sizes{lengths.q[i], lengths.kv[i], begin_of(lengths, i)};
    const std::int64_t mask = all ? next : seen.try_emplace(sizes, next).first->second;
    if (mask == next) found.first.push_back(static_cast<std::int64_t>(i));
    found.which.push_back(mask);
  }
  return found;
}

MaskMod with_b(const MaskMod& rule, std::int64_t b) {
  formula::Graph graph;
  const formula::NodeId root = formula::make_int(graph, b);
  return MaskMod(formula::substitute(rule.formula(), Op::kBatch, Formula(graph, root)));
}

void check_arguments(const char* where, std::int64_t heads, const BlockGrid& grid) {
  check_size(where, "heads", heads, 0, kMostBlocks);
  check_size(where, "q_len", grid.q_len, 0, kMostPosition);
  check_size(where, "kv_len", grid.kv_len, 0, kMostPosition);
  check_size(where, "block_size.q", grid.size.q, 1, kMostPosition);
  check_size(where, "block_size.kv", grid.size.kv, 1, kMostPosition);
  check_size(where, "the number of query blocks", grid.q_blocks(), 0, kMostBlocks);
  check_size(where, "the number of key blocks", grid.kv_blocks(), 0, kMostBlocks);
}

BlockRows prove_sequence(const BlockProver& prover, std::int64_t b, std::int64_t planes,
                         const BlockGrid& grid, BlockProver::Worker& worker) {
  const std::int64_t rows = grid.q_blocks();
  BlockRowsBuilder builder(1, planes, rows);
  std::vector<RunList> runs(rows);
  for (std::int64_t h = 0; h < planes; ++h) {
    prover.prove(b, h, grid, {0, rows, 0, grid.kv_blocks()}, runs, worker);
    for (RunList& row : runs) {
      builder.add_row(row);
      row.clear();
    }
  }
  return builder.finish();
}

}  // namespace

SequenceMasks create_sequence_masks(const char* where, const MaskMod& rule, std::int64_t heads,
                                    const SequenceLengths& lengths,
                                    const BlockMaskOptions& options) {
  const BlockGrid all = around(lengths, options.block_size);
  check_arguments(where, heads, all);
  const BlockProver prover(rule, static_cast<std::int64_t>(lengths.q.size()), heads, all);
  const std::int64_t planes = prover.depends_on_h() ? heads : std::min<std::int64_t>(heads, 1);
  const std::shared_ptr<Executor> executor = executor_of(options.executor);
  RunBudget budget(where, 0);
  std::vector<BlockProver::Worker> workers;
  workers.reserve(executor->concurrency());
  for (std::size_t i = 0; i < executor->concurrency(); ++i) workers.emplace_back(prover, &budget);

  Different different = find_different(lengths, prover.depends_on_b());
  std::vector<std::shared_ptr<BlockMaskData>> data(different.first.size());
  run_parallel(*executor, data.size(), [&](std::size_t i, std::size_t worker) {
    const std::int64_t b = different.first[i];
    const std::size_t at = b;
    const BlockGrid grid{begin_of(lengths, at), lengths.q[at], lengths.kv[at], options.block_size};
    std::shared_ptr<BlockMaskData> made = make_data(grid, 1, heads);
    made->separate_full_blocks = options.separate_full_blocks;
    made->mask_mod = prover.depends_on_b() ? with_b(rule, b) : rule;
    budget.spend(saturating_product(saturating_product(grid.q_blocks(), planes), kRowBytes));
    made->rows =
        std::make_shared<const BlockRows>(prove_sequence(prover, b, planes, grid, workers[worker]));
    data[i] = std::move(made);
  });
  prover.throw_first_fault(workers);

  SequenceMasks result{.masks = {}, .which = std::move(different.which)};
  result.masks.reserve(data.size());
  for (std::shared_ptr<BlockMaskData>& one : data) result.masks.emplace_back(std::move(one));
  return result;
}

}  // namespace quire::mask
