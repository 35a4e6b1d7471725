// Maps intervals of indices to ranges of the min/max tree. Formula layer.
#include "formula/bound/bound_buffer.h"

#include <limits>
#include <type_traits>

#include "formula/type_rules.h"
#include "tensor/element.h"

namespace quire::formula {
namespace {

Interval range_of(DType dtype) {
  if (is_floating(dtype)) return Interval::any_float();
  return visit_dtype(dtype, []<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      return Interval::ints(std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    } else {
      return Interval::any_float();
    }
  });
}

bool covers(const Interval& a, const Interval& b) {
  if (a.type == ValueType::kInt) return a.int_lo <= b.int_lo && a.int_hi >= b.int_hi;
  return a.float_lo <= b.float_lo && a.float_hi >= b.float_hi && a.maybe_nan >= b.maybe_nan;
}

}  // namespace

BufferBounds::BufferBounds(const Buffer& buffer, Precision precision, bool read_contents) {
  const auto shape = buffer.shape();
  rank_ = shape.size();
  bool is_empty = false;
  for (std::size_t i = 0; i < rank_; ++i) {
    axes_[i].size = shape[i];
    is_empty |= shape[i] == 0;
  }
  all_ = range_of(buffer.dtype());
  if (is_empty) all_ = is_floating(buffer.dtype()) ? Interval::floats(0, 0) : Interval::ints(0, 0);
  if (is_empty || !read_contents || !buffer.has_data()) return;

  // A view with repeated elements (stride 0) may be far larger than its memory: store them once.
  ConstTensorView view = buffer.view();
  for (std::size_t i = 0; i < rank_; ++i)
    if (view.strides()[i] == 0) view = view.slice(static_cast<std::int64_t>(i), 0, 1);
  const Shape strides = contiguous_strides(view.shape());
  for (std::size_t i = 0; i < rank_; ++i) {
    axes_[i].stored = view.shape()[i];
    axes_[i].stride = strides[i];
  }
  tree_.emplace(view, precision);
  all_ = tree_->query(0, tree_->size() - 1);
}

std::int64_t BufferBounds::trailing_count(std::size_t indices) const {
  std::int64_t count = 1;
  for (std::size_t i = indices; i < rank_; ++i) count *= axes_[i].size;
  return count;
}

// A negative index counts from the end; what is still outside is clamped. An interval with both
// signs reads the beginning and the end of the axis.
BufferBounds::Positions BufferBounds::positions(const Interval& index, std::int64_t size) {
  const auto from_start = [&](std::int64_t i) { return std::min(i, size - 1); };
  const auto from_end = [&](std::int64_t i) { return std::max<std::int64_t>(i + size, 0); };
  if (index.int_lo >= 0) return {from_start(index.int_lo), from_start(index.int_hi), 0, 0};
  if (index.int_hi < 0) return {from_end(index.int_lo), from_end(index.int_hi), 0, 0};
  const std::int64_t a = from_start(index.int_hi), b = from_end(index.int_lo);
  return b > a + 1 ? Positions{0, size - 1, a, b} : Positions{0, size - 1, 0, 0};
}

Interval BufferBounds::elements(std::span<const Interval> indices) const {
  if (!tree_) return all_;
  std::array<Positions, kMaxRank> reads;
  std::size_t used = 0;  // axes up to the last that is not read whole
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t stored = axes_[i].stored;
    reads[i] = stored == 1 ? Positions{0, 0, 0, 0} : positions(indices[i], axes_[i].size);
    if (reads[i].first != 0 || reads[i].last != stored - 1 || reads[i].has_gap()) used = i + 1;
  }
  return used == 0 ? all_ : runs({reads.data(), used});
}

// Loops over the index combinations of the leading axes while there are few; each is one run of the
// tree.
Interval BufferBounds::runs(std::span<const Positions> reads) const {
  const auto count = [&](std::size_t i) { return reads[i].last - reads[i].first + 1; };
  std::size_t outer = 0;
  for (std::int64_t left = kMaxRuns; outer + 1 < reads.size() && count(outer) <= left; ++outer)
    left /= count(outer);

  std::array<std::int64_t, kMaxRank> at{};
  std::int64_t base = 0;
  for (std::size_t i = 0; i < outer; ++i) base += reads[i].first * axes_[i].stride;
  Interval result = run(base, reads, outer);
  while (!covers(result, all_)) {
    std::size_t i = outer;
    for (; i > 0; --i) {  // next combination, like an odometer
      base += axes_[i - 1].stride;
      if (++at[i - 1] < count(i - 1)) break;
      base -= count(i - 1) * axes_[i - 1].stride;
      at[i - 1] = 0;
    }
    if (i == 0) break;
    result = hull(result, run(base, reads, outer));
  }
  return result;
}

// The elements from the first to the last position of the axes from `outer` on.
Interval BufferBounds::run(std::int64_t base, std::span<const Positions> reads,
                           std::size_t outer) const {
  const std::size_t inner = reads.size() - 1;
  const std::int64_t length = axes_[inner].stride;  // elements per position
  if (outer == inner && reads[inner].has_gap()) {
    const Positions& read = reads[inner];
    return hull(
        tree_->query(base, base + read.gap_first * length + length - 1),
        tree_->query(base + read.gap_last * length, base + read.last * length + length - 1));
  }
  std::int64_t first = base, last = base + length - 1;
  for (std::size_t i = outer; i <= inner; ++i) {
    first += reads[i].first * axes_[i].stride;
    last += reads[i].last * axes_[i].stride;
  }
  return tree_->query(first, last);
}

}  // namespace quire::formula
