// Shapes: construction, printing, element counts with overflow checks. Tensor layer.
#include "quire/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <limits>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {
namespace {

void check_rank(size_t rank) {
  if (rank > kMaxRank) {
    fail(ErrorKind::value, "Shape", "rank must be at most {}; got {}", kMaxRank, rank);
  }
}

}  // namespace

Shape::Shape(std::span<const int64_t> values) {
  check_rank(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = values.size();
}

Shape::Shape(std::initializer_list<int64_t> values)
    : Shape(std::span(values.begin(), values.size())) {}

Shape::Shape(const std::vector<int64_t>& values) : Shape(std::span<const int64_t>(values)) {}

void Shape::push_back(int64_t value) { insert(rank_, value); }

void Shape::insert(size_t axis, int64_t value) {
  assert(axis <= rank_);
  check_rank(rank_ + 1);
  std::copy_backward(begin() + axis, end(), end() + 1);
  values_[axis] = value;
  ++rank_;
}

void Shape::erase(size_t axis) noexcept {
  assert(axis < rank_);
  std::copy(begin() + axis + 1, end(), begin() + axis);
  values_[--rank_] = 0;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      fail(ErrorKind::value, "Shape", "sizes must not be negative; got {}", to_string(shape));
    }
    if (size == 0) {
      is_empty = true;
    } else if (count > std::numeric_limits<int64_t>::max() / size) {
      fail(ErrorKind::value, "Shape", "too many elements; got {}", to_string(shape));
    } else {
      count *= size;
    }
  }
  return is_empty ? 0 : count;
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (size_t axis = shape.rank(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= std::max<int64_t>(shape[axis], 1);
  }
  return strides;
}

}  // namespace quire
