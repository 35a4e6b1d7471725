// Runs tile programs over a region of (b, h, q, kv), tile by tile, the way kernels will: prefill
// (queries across the lanes) or decode (keys across the lanes), with any tile shape and score
// layout, on any ISA. Scratch and padding start as garbage, so that what is read before it is
// written shows. Tests only.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "formula/bound/bound.h"
#include "formula/compile/compile.h"
#include "kernels/tile/tile_runner.h"
#include "quire/formula.h"
#include "quire/isa.h"

namespace quire::testing {

enum class TileAxes {
  kPrefill,      // lanes = q, rows = kv
  kDecode,       // lanes = kv, rows = q
  kDecodePairs,  // lanes = kv, rows = listed (h, q) pairs
};

struct TileRunOptions {
  TileAxes axes = TileAxes::kPrefill;
  Isa isa = Isa::scalar;
  Precision precision = Precision::kF32;
  bool node_by_node = false;
  int max_rows = 256;
  int groups = 1;
  bool panels_apart = false;  // scores as [panel][row][16], not [row][lane]
};

struct TileResult {
  // [h][q][kv] of the region
  std::vector<double> scores;
  std::vector<bool> visible;
  std::vector<double> lane_max;  // of scores: over kv per (h, q); decode folds its 64 lanes
  kernels::TileFault fault;
  kernels::TileProgram program;
};

/// The score of an element before the mod.
using ScoreAt = std::function<double(std::int64_t h, std::int64_t q, std::int64_t kv)>;

/// One batch entry (extents.b.first must be its number), all heads and positions of `region`; the
/// program is compiled for `extents`. Without a score mod and with `mask_only`, only `visible` is
/// filled.
TileResult run_tiles(const formula::CompileRequest& request, const formula::Rectangle& extents,
                     const formula::Rectangle& region, const ScoreAt& score,
                     const TileRunOptions& options);

/// Same bits; all NaNs are equal.
bool same_bits(double a, double b);

}  // namespace quire::testing
