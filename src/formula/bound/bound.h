// Bounder: a sound interval for every value of a formula over a rectangle of (b, h, q_idx, kv_idx).
// Used to classify rectangles of a mask (empty, full, undecided), to prove indices in bounds and to
// prove that ints fit into 32 bits. Does not split rectangles. The rules for single operations, and
// what they assume about evaluators, are in interval_rules.h. Formula layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formula/bound/interval.h"
#include "formula/graph.h"
#include "quire/formula.h"

namespace quire::formula {

/// first..last, both included. An empty range (last < first) is a programming error.
struct IndexRange {
  std::int64_t first, last;
};

struct Rectangle {
  IndexRange b, h, q, kv;
};

enum class Tri : std::uint8_t {
  kFalse,    // false everywhere in the rectangle
  kTrue,     // true everywhere
  kUnknown,  // not proved to be either
};

struct BoundOptions {
  /// Whether the contents of buffers are used. They are read once, by the constructor: a Bounder is
  /// a snapshot. If false, only shapes and dtypes are used, and what is proved holds for any
  /// contents.
  bool read_buffers = true;
};

/// Ints are exact where they are affine in the indices and nothing wraps; ordered comparisons of
/// two such ints are decided exactly. The score is any float. An index that may be out of range
/// reads what evaluation would read: the clamped element, or 0 from an empty buffer.
///
/// Queries are const, allocate nothing and may run on many threads, each with its own scratch.
class Bounder {
 public:
  /// Takes time and memory proportional to the formula and (with read_buffers) its buffers.
  Bounder(const Formula& formula, Precision precision, BoundOptions options = {});
  Bounder(Bounder&&) noexcept;
  Bounder& operator=(Bounder&&) noexcept;
  ~Bounder();

  /// Number of values in the formula: what `scratch` and `out` must have room for.
  std::size_t size() const;
  std::vector<Interval> make_scratch() const { return std::vector<Interval>(size()); }

  /// The interval of the formula's value. `scratch` need not be initialised.
  Interval bound(const Rectangle& rectangle, std::span<Interval> scratch) const;

  /// The interval of every value: out[id] is that of node `id` of the formula's graph.
  void bound_all(const Rectangle& rectangle, std::span<Interval> out) const;

  /// For a formula whose value is a bool.
  Tri classify(const Rectangle& rectangle, std::span<Interval> scratch) const;

 private:
  struct Program;
  std::unique_ptr<const Program> program_;
};

}  // namespace quire::formula
