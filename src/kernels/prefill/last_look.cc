// Compares positions and runs of keys; what a rule depends on is read off its program. Kernels
// layer.
#include "kernels/prefill/last_look.h"

namespace quire::kernels {
namespace {

bool asks_for(const TileProgram& program, Coord coord) {
  for (const auto& phase : program.phases)
    for (const TileInstruction& in : phase)
      if ((in.op == TileOp::kStart || in.op == TileOp::kList) &&
          in.imm == static_cast<int64_t>(coord))
        return true;
  return false;
}

bool are_equal(const KeyRun& x, const KeyRun& y) {
  return x.begin == y.begin && x.end == y.end && x.full == y.full;
}

}  // namespace

// A rule that can fault is asked for every head, or the first fault would depend on who went first.
LastLook::LastLook(const TileProgram* mask)
    : asks_b_(mask != nullptr && (!mask->checks.empty() || asks_for(*mask, Coord::kB))),
      asks_h_(mask != nullptr && (!mask->checks.empty() || asks_for(*mask, Coord::kH))) {}

// One list of runs for all queries, and a short one.
bool LastLook::are_few(const QueryTile& tile) noexcept {
  return tile.chosen == nullptr && tile.visible_count == 1 && tile.visible->lane_begin == 0 &&
         tile.visible->lane_end >= tile.queries && tile.visible->visible.count >= 0 &&
         tile.visible->visible.count <= kMostRuns;
}

bool LastLook::is_of(const QueryTile& tile, int64_t key, int rows) const noexcept {
  if (!is_set_ || tile.q_idx != q_idx_ || key != key_ || rows != rows_ ||
      tile.queries != queries_ || (asks_b_ && tile.b != b_) || (asks_h_ && tile.h != h_) ||
      !are_few(tile))
    return false;
  const KeyRuns& runs = tile.visible->visible;
  return std::equal(runs.runs, runs.runs + runs.count, runs_, runs_ + run_count_, are_equal);
}

void LastLook::keep(const QueryTile& tile, int64_t key, int rows, const uint64_t* words,
                    const TileActivity& activity) noexcept {
  is_set_ = are_few(tile);
  if (!is_set_) return;
  b_ = tile.b;
  h_ = tile.h;
  q_idx_ = tile.q_idx;
  key_ = key;
  rows_ = rows;
  queries_ = tile.queries;
  run_count_ = tile.visible->visible.count;
  std::copy_n(tile.visible->visible.runs, run_count_, runs_);
  std::copy_n(words, rows, words_);
  activity_ = activity;
}

}  // namespace quire::kernels
