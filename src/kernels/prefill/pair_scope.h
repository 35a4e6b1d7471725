// What callers of pair products need: their functions, how long rows of pairs are, and what a
// thread does before the first product and after the last (tile registers). Plain code. Kernels
// layer.
#pragma once
#include "kernels/forward_problem.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

/// If the call multiplies pairs.
inline const PairFunctions& pair_functions(const ForwardCall& call) {
  return call.integers ? *call.table->integers : *call.table->pairs;
}

/// The functions of tile registers; null if the call does not use them.
inline const PairTiles* tiles_of(const ForwardCall& call) {
  return call.pairs && call.table != nullptr ? pair_functions(call).tiles : nullptr;
}

/// Pairs along d of a row of queries or keys, if the call multiplies pairs.
inline int row_pairs(const ForwardCall& call) {
  const int pairs = (call.dims + 1) / 2, step = pair_functions(call).step;
  return (pairs + step - 1) / step * step;
}

/// Columns of values for tile registers, which take them in groups of two.
constexpr int tile_columns(int columns) { return (columns + 31) / 32 * 32; }

/// While it lives, this thread may multiply pairs of the call.
class PairScope {
 public:
  explicit PairScope(const ForwardCall& call) : tiles_(tiles_of(call)) {
    if (tiles_ != nullptr) tiles_->begin();
  }
  ~PairScope() {
    if (tiles_ != nullptr) tiles_->end();
  }
  PairScope(const PairScope&) = delete;
  PairScope& operator=(const PairScope&) = delete;

 private:
  const PairTiles* tiles_;
};

}  // namespace quire::kernels
