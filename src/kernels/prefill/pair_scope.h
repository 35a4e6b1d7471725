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
  if (!call.integers) return *call.table->pairs;
  const bool are_bytes = are_exact_integers(call.k_coding) && are_exact_integers(call.v_coding);
  return are_bytes ? *call.table->bytes : *call.table->integers;
}

/// The bf16 functions of tile registers; null if the call does not use them.
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
  explicit PairScope(const ForwardCall& call)
      : end_(call.pairs ? pair_functions(call).end : nullptr) {
    if (end_ != nullptr) pair_functions(call).begin();
  }
  ~PairScope() {
    if (end_ != nullptr) end_();
  }
  PairScope(const PairScope&) = delete;
  PairScope& operator=(const PairScope&) = delete;

 private:
  void (*end_)() noexcept;  // null: there are no tile registers to release
};

}  // namespace quire::kernels
