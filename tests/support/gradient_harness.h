// Runs a gradient program over all tiles of (b, h, q, kv), as the backward pass does: chunks of
// keys, heads in the order of their ordinals, query tiles from the last to the first, any number of
// threads. Scratch starts as garbage. Tests only.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "formula/bound/bound.h"
#include "formula/gradient/compile_gradient.h"
#include "kernels/tile/tile_runner.h"
#include "quire/formula.h"
#include "quire/isa.h"

namespace quire::testing {

struct GradientRunOptions {
  Isa isa = Isa::scalar;
  Precision precision = Precision::kF32;
  int max_rows = 96;
  std::int64_t chunk = 200;  // keys of an item
  int threads = 1;
};

/// A number for each element, before the mod, and the gradient of what comes after.
using NumberAt =
    std::function<double(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv)>;
using VisibleAt =
    std::function<bool(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv)>;

struct GradientInputs {
  formula::Rectangle extents;
  NumberAt score, d_modified;
  VisibleAt visible = {};  // null: everything is
};

struct GradientResult {
  std::vector<double> scores, slopes;          // [b][h][q][kv] of the extents
  std::vector<std::vector<double>> gradients;  // by target
  formula::CompiledGradient compiled;
  kernels::TileFault fault;  // its program is `compiled`'s until that moves
};

GradientResult run_gradient(const Formula& score_mod, const GradientInputs& inputs,
                            const GradientRunOptions& options);

}  // namespace quire::testing
