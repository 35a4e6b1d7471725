// MinMaxTree: minimum and maximum of any range of a tensor in O(log n). A snapshot of the elements
// as a formula sees them (bools as 0 and 1, floats rounded to the precision of the score),
// flattened in row-major order whatever the strides. Multi-axis indices are handled by
// bound_buffer.h. Formula layer.
#pragma once
#include <cstdint>
#include <memory>

#include "formula/bound/interval.h"
#include "quire/formula.h"
#include "quire/tensor_view.h"

namespace quire::formula {

class MinMaxTree {
 public:
  /// Copies the elements (in their own type; bf16 and f16 as f32) and adds 2/15 of that for the
  /// levels above them. Reads the view only here.
  MinMaxTree(const ConstTensorView& view, Precision precision);
  MinMaxTree(MinMaxTree&&) noexcept;
  MinMaxTree& operator=(MinMaxTree&&) noexcept;
  ~MinMaxTree();

  std::int64_t size() const { return size_; }

  /// Over the elements first..last, both included, 0 <= first <= last < size(): an int or a float
  /// interval whose ends are elements; NaNs do not count for the ends but set maybe_nan. Thread
  /// safe.
  Interval query(std::int64_t first, std::int64_t last) const;

  class Levels;  // one implementation per element type

 private:
  std::unique_ptr<const Levels> levels_;
  std::int64_t size_;
};

}  // namespace quire::formula
