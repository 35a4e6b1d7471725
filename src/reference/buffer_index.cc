// Wrapping, clamping and flattening of indices. Reference layer.
#include "reference/buffer_index.h"

#include <algorithm>

namespace quire::reference {

BufferIndex buffer_index(const Shape& shape, std::span<const std::int64_t> given) {
  BufferIndex result;
  for (std::size_t axis = 0; axis < given.size(); ++axis) {
    const std::int64_t size = shape[axis], index = given[axis];
    const std::int64_t wrapped = index < 0 ? index + size : index;
    if ((wrapped < 0 || wrapped >= size) && !result.outside)
      result.outside = OutsideIndex{axis, index, size};
    if (size == 0) result.nowhere = true;
    result.indices.push_back(size == 0 ? 0 : std::clamp<std::int64_t>(wrapped, 0, size - 1));
  }
  return result;
}

std::int64_t trailing_count(const Shape& shape, std::size_t leading) {
  std::int64_t count = 1;
  for (std::size_t axis = leading; axis < shape.rank(); ++axis) count *= shape[axis];
  return count;
}

Shape with_trailing(const Shape& shape, const Shape& leading, std::int64_t k) {
  Shape indices = leading;
  for (std::size_t axis = leading.rank(); axis < shape.rank(); ++axis) indices.push_back(0);
  for (std::size_t axis = shape.rank(); axis-- > leading.rank();) {
    indices[axis] = k % shape[axis];
    k /= shape[axis];
  }
  return indices;
}

std::int64_t row_major(const Shape& shape, const Shape& indices) {
  std::int64_t position = 0;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis)
    position = position * shape[axis] + indices[axis];
  return position;
}

}  // namespace quire::reference
