// Maps the indices that a formula computes to elements of a captured buffer: negative ones wrap,
// those out of range are clamped and reported. Also iterates over trailing axes for sum and dot,
// and computes row-major positions. Reference layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "quire/shape.h"

namespace quire::reference {

/// The first index outside its axis.
struct OutsideIndex {
  std::size_t axis = 0;
  std::int64_t index = 0;  // as given
  std::int64_t size = 0;
};

/// Indices of the leading axes of a buffer, each inside its axis.
struct BufferIndex {
  Shape indices;
  bool nowhere = false;  // an axis is empty, so there is nothing to read
  std::optional<OutsideIndex> outside;
};

/// `given`, with negative indices wrapped once, then clamped.
BufferIndex buffer_index(const Shape& shape, std::span<const std::int64_t> given);

/// Number of elements of the axes after the first `leading`.
std::int64_t trailing_count(const Shape& shape, std::size_t leading);

/// `leading` followed by the indices of element `k` of the axes after them, 0 <= k <
/// trailing_count.
Shape with_trailing(const Shape& shape, const Shape& leading, std::int64_t k);

/// The position of an element in row-major order.
std::int64_t row_major(const Shape& shape, const Shape& indices);

}  // namespace quire::reference
