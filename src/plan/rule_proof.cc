// Proves bands of 64 positions in blocks and keeps the results; rows whose band is undecided are
// evaluated key by key. Plan layer.
#include "plan/rule_proof.h"

#include <algorithm>
#include <bit>

#include "runtime/run_parallel.h"

namespace quire::plan {

using mask::BlockGrid;
using mask::RunList;

namespace {

constexpr std::int64_t kBand = kTileBlocks.q;
constexpr std::size_t kMostRules = 8, kMostBands = 1 << 14;
constexpr std::size_t kFewBands = 4;  // a few microseconds each

BlockGrid grid_of(const ProofExtents& extents, BlockSize size) {
  return {extents.q_begin, extents.q_end - extents.q_begin, extents.kv_end, size};
}

// Room to grow: a proof is made again when lengths have doubled.
ProofExtents rounded_up(const ProofExtents& extents) {
  const auto up = [](std::int64_t n) {
    return 2 * static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
  };
  const std::int64_t positions = up(std::max(extents.q_end, extents.kv_end));
  return {.b_end = up(extents.b_end), .q_begin = 0, .q_end = positions, .kv_end = positions};
}

}  // namespace

ProofExtents ProofExtents::of(std::span<const StepSequence> sequences) {
  ProofExtents all{.q_begin = sequences.front().q_begin};
  for (const StepSequence& of : sequences) {
    all.b_end = std::max(all.b_end, of.b + 1);
    all.q_begin = std::min(all.q_begin, of.q_begin);
    all.q_end = std::max(all.q_end, of.q_begin + of.queries);
    all.kv_end = std::max(all.kv_end, of.length);
  }
  return all;
}

bool ProofExtents::cover(const ProofExtents& other) const {
  return other.b_end <= b_end && other.q_begin >= q_begin && other.q_end <= q_end &&
         other.kv_end <= kv_end;
}

RuleProof::Prover::Prover(const MaskMod& rule, const ProofExtents& extents, BlockSize of_blocks,
                          const Options& options)
    : size(of_blocks),
      prover(rule, extents.b_end, options.heads, grid_of(extents, of_blocks), options.how) {
  workers.reserve(options.workers);
  for (std::size_t i = 0; i < options.workers; ++i) workers.emplace_back(prover);
}

void RuleProof::Prover::prove(const StepSequence& of, std::int64_t h, std::size_t worker,
                              std::vector<RunList>& blocks) {
  const BlockGrid grid{of.q_begin, of.queries, of.length, size};
  blocks.resize(static_cast<std::size_t>(grid.q_blocks()));
  for (RunList& row : blocks) row.clear();
  prover.prove(of.b, h, grid, {0, grid.q_blocks(), 0, grid.kv_blocks()}, blocks, workers[worker]);
}

RuleProof::RuleProof(const MaskMod& rule, const ProofExtents& extents, const Options& options)
    : rule_(rule), extents_(extents), options_(options), rows_(rule, extents, {1, 1}, options) {}

bool RuleProof::can_be_kept() const {
  return rule_.formula().buffers().empty() && !rows_.prover.may_fault();
}

void RuleProof::throw_first_fault() const {
  rows_.prover.throw_first_fault(rows_.workers);
  if (tiles_) tiles_->prover.throw_first_fault(tiles_->workers);
}

// ---- Bands

std::size_t RuleProof::HashBand::operator()(const Band& band) const noexcept {
  const auto mix = [](std::int64_t n) {
    return static_cast<std::uint64_t>(n) * std::uint64_t{0x9E3779B97F4A7C15};
  };
  return static_cast<std::size_t>(mix(band.number) ^ (mix(band.b) >> 21) ^ (mix(band.h) >> 42));
}

RuleProof::Band RuleProof::band_of(const StepSequence& of, std::int64_t h,
                                   std::int64_t q_idx) const {
  return {
      .number = q_idx / kBand, .b = rows_.prover.depends_on_b() ? of.b : 0, .h = by_head() ? h : 0};
}

std::vector<kernels::KeyRun> RuleProof::prove_band(const Band& band, std::size_t worker) {
  const std::int64_t begin = band.number * kBand, end = begin + kBand;
  const BlockGrid grid{begin, std::min(kBand, extents_.q_end - begin),
                       std::min(end, extents_.kv_end), kTileBlocks};
  RunList blocks;
  tiles_->prover.prove(band.b, band.h, grid, {0, 1, 0, grid.kv_blocks()}, {&blocks, 1},
                       tiles_->workers[worker]);
  std::vector<kernels::KeyRun> runs;
  runs.reserve(blocks.size());
  for (const BlockRun& run : blocks)
    runs.push_back({run.begin * kTileBlocks.kv, std::min(run.end() * kTileBlocks.kv, grid.kv_len),
                    mask::is_full(run.kind)});
  return runs;
}

void RuleProof::prepare(std::span<const StepSequence* const> sequences, Executor& executor) {
  if (!options_.is_kept) return;
  if (!tiles_) tiles_.emplace(rule_, extents_, kTileBlocks, options_);
  if (bands_.size() > kMostBands) bands_.clear();
  std::vector<std::pair<const Band, std::vector<kernels::KeyRun>>*> missing;
  for (const StepSequence* of : sequences) {
    const std::int64_t end = of->q_begin + of->queries;
    for (std::int64_t h = 0; h < (by_head() ? options_.heads : 1); ++h) {
      for (std::int64_t q = of->q_begin; q < end; q = (q / kBand + 1) * kBand) {
        const auto [at, is_new] = bands_.try_emplace(band_of(*of, h, q));
        if (is_new) missing.push_back(&*at);
      }
    }
  }
  try {
    if (missing.size() <= kFewBands) {
      for (auto* one : missing) one->second = prove_band(one->first, 0);
    } else {
      run_parallel(executor, missing.size(), [&](std::size_t i, std::size_t worker) {
        missing[i]->second = prove_band(missing[i]->first, worker);
      });
    }
  } catch (...) {  // bands that were not proved would show nothing
    bands_.clear();
    throw;
  }
}

void RuleProof::prove_rows(const StepSequence& of, std::int64_t h, std::size_t worker,
                           std::vector<RunList>& rows) {
  if (!options_.is_kept) return rows_.prove(of, h, worker, rows);
  const BlockGrid grid{of.q_begin, of.queries, of.length, {1, 1}};
  rows.resize(static_cast<std::size_t>(of.queries));
  for (RunList& row : rows) row.clear();
  for (std::int64_t first = 0, end = 0; first < of.queries; first = end) {
    const Band band = band_of(of, h, of.q_begin + first);
    const std::int64_t band_end = (band.number + 1) * kBand;
    end = std::min(of.queries, band_end - of.q_begin);
    const std::span<RunList> some = std::span(rows).subspan(static_cast<std::size_t>(first),
                                                            static_cast<std::size_t>(end - first));
    const auto prove = [&](std::int64_t begin, std::int64_t key_end) {
      rows_.prover.prove(of.b, h, grid, {first, end, begin, std::min(key_end, of.length)}, some,
                         rows_.workers[worker]);
    };
    for (const kernels::KeyRun& run : bands_.find(band)->second) {
      if (run.begin >= of.length) break;
      if (run.full) {
        for (RunList& row : some)
          mask::append_run(row, run.begin, std::min(run.end, of.length), BlockKind::kFull);
      } else {
        prove(run.begin, run.end);
      }
    }
    prove(band_end, of.length);  // keys after the band
  }
}

// ---- Tiles

void RuleProof::prepare_tiles() {
  if (!tiles_) tiles_.emplace(rule_, extents_, kTileBlocks, options_);
  if (later_) return;
  const MaskMod later = [](auto, auto, auto q, auto kv) { return kv > q; };
  later_.emplace(rule_ & later, extents_, kTileBlocks, options_);
}

void RuleProof::prove_tiles(const StepSequence& of, std::int64_t h, std::size_t worker,
                            std::vector<RunList>& tiles) {
  tiles_->prove(of, h, worker, tiles);
}

bool RuleProof::shows_later(const StepSequence& of, std::int64_t h, std::size_t worker) {
  std::vector<RunList> tiles;
  later_->prove(of, h, worker, tiles);
  return std::ranges::any_of(tiles, [](const RunList& row) { return !row.empty(); });
}

bool RuleProof::sees(const StepSequence& of, std::int64_t h, std::int64_t begin, std::int64_t end,
                     std::size_t worker) {
  const BlockGrid grid{of.q_begin, of.queries, of.length, {1, 1}};
  std::vector<RunList> rows(static_cast<std::size_t>(of.queries));
  rows_.prover.prove(of.b, h, grid, {0, of.queries, begin, end}, rows, rows_.workers[worker]);
  return std::ranges::any_of(rows, [](const RunList& row) { return !row.empty(); });
}

// ---- From step to step

RuleProof* RuleMemory::find(const MaskMod& rule, const ProofExtents& extents, std::int64_t heads,
                            std::size_t workers) {
  if (!rule.formula().buffers().empty()) return nullptr;
  auto at = std::ranges::find_if(kept_, [&](const Kept& one) {
    return one.heads == heads && one.workers == workers && one.rule.formula() == rule.formula();
  });
  if (at == kept_.end()) {
    if (kept_.size() == kMostRules) kept_.erase(kept_.begin());
    kept_.push_back({rule, heads, workers, nullptr});
  } else {
    std::rotate(at, at + 1, kept_.end());
    if (kept_.back().proof == nullptr) return nullptr;
    if (kept_.back().proof->extents().cover(extents)) return kept_.back().proof.get();
  }
  Kept& last = kept_.back();
  last.proof.reset();
  auto made = std::make_unique<RuleProof>(
      rule, rounded_up(extents),
      RuleProof::Options{.heads = heads, .workers = workers, .is_kept = true});
  if (made->can_be_kept()) last.proof = std::move(made);
  return last.proof.get();
}

}  // namespace quire::plan
