// Bounds on values read from one buffer. Intervals of indices become ranges of a min/max tree,
// after the wrapping and clamping that the language defines; sums and dot products of such reads
// are bounded as well. Formula layer.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "formula/bound/interval.h"
#include "formula/bound/minmax_tree.h"
#include "quire/buffer.h"
#include "quire/formula.h"
#include "quire/shape.h"

namespace quire::formula {

class BufferBounds {
 public:
  /// Without `read_contents`, or if the buffer is only declared, the range of the dtype is all that
  /// is known of its elements.
  BufferBounds(const Buffer& buffer, Precision precision, bool read_contents);

  /// All elements that indices in these intervals can reach, with later axes read entirely. 0 if
  /// the buffer is empty. O(log n), times up to kMaxRuns if several leading indices vary.
  Interval elements(std::span<const Interval> indices) const;

  /// Whether `elements` gives the same for all indices.
  bool is_constant() const { return !tree_.has_value(); }

  /// Number of elements per combination of the first `indices` indices.
  std::int64_t trailing_count(std::size_t indices) const;

  /// Up to this many runs of consecutive elements are looked up one by one; if there are more, one
  /// range that covers them. 128: a usual block of a dense mask[q_idx, kv_idx] is looked up row by
  /// row, which costs no more than evaluating its elements.
  static constexpr std::int64_t kMaxRuns = 128;

 private:
  struct Axis {
    std::int64_t size;    // as seen by indices
    std::int64_t stored;  // in the tree: 1 where a view repeats its elements
    std::int64_t stride;  // in the tree
  };
  // Positions first..last of an axis, except those strictly between the ends of the gap.
  struct Positions {
    std::int64_t first, last;
    std::int64_t gap_first, gap_last;
    bool has_gap() const { return gap_first != gap_last; }
  };
  static Positions positions(const Interval& index, std::int64_t size);

  Interval runs(std::span<const Positions> reads) const;
  Interval run(std::int64_t base, std::span<const Positions> reads, std::size_t outer) const;

  std::array<Axis, kMaxRank> axes_{};
  std::size_t rank_ = 0;
  std::optional<MinMaxTree> tree_;
  Interval all_;  // of any element
};

/// A sum of `count` ints (wrapping) or floats (each addition rounded) in one chain from 0.
Interval bound_sum(const Interval& element, std::int64_t count, Precision precision);

/// The dot product of `count` pairs, each one fused multiply-add if either is a float. `same`: both
/// elements of a pair are the same value.
Interval bound_dot(const Interval& a, const Interval& b, std::int64_t count, bool same,
                   Precision precision);

}  // namespace quire::formula
